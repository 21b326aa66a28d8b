"""What every command that runs a model does around its library function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cachegen_cli import console
from cachegen_cli.options.inputs import InputOptions
from cachegen_cli.options.outputs import ReportOptions
from cachegen_cli.options.typed import command_of


def run(
    work: Callable[..., Any], source: InputOptions, output: ReportOptions, **arguments: Any
) -> Any:
    """Call a library function on the model and texts, deliver its result, and return it."""
    prepared = source.capture_options(output.quiet)
    with console.progress(output.quiet) as progress:
        result = work(**prepared, **arguments, progress=progress)
    command = command_of(sys.argv[1:], output.OWN)
    result = replace(result, run=replace(result.run, command=command))
    output.deliver(result, result.run.messages)
    return result
