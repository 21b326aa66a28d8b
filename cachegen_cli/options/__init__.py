"""Options that commands share, as dataclasses that a command takes as parameters.

`flatten.takes_options` turns the dataclasses of a command's signature into the options that
Typer sees, so that a group is written down once.
"""
