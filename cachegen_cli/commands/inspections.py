"""The command that says what a file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cachegen_cli.options.flatten import takes_options
from cachegen_cli.options.outputs import OutputOptions

INSPECT_EXAMPLES = """\b
Examples:
  cachegen inspect notes.cgkv
  cachegen inspect notes.cgkv --json | jq .container_bytes
  cachegen inspect notes.safetensors"""


@takes_options
def inspect(
    *,
    file: Annotated[
        Path, typer.Argument(help="A .cgkv file, or mlx-lm's prompt cache.", show_default=False)
    ],
    output: OutputOptions,
) -> None:
    """Print what a .cgkv file or a prompt cache holds, without decoding it."""
    if file.suffix == ".safetensors":
        from cachegen_cli.promptcache.described import describe

        result = describe(file)
        output.deliver(result, result.messages)
        return
    from cachegen_cli import unpacking

    output.deliver(unpacking.inspect(file))
