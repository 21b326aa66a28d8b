"""Commands that write mlx-lm's prompt caches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cachegen_cli import console
from cachegen_cli.errors import UsageError
from cachegen_cli.options.flatten import takes_options
from cachegen_cli.options.inputs import InputOptions
from cachegen_cli.options.outputs import CacheOptions

CAPTURE_EXAMPLES = """\b
Examples:
  cachegen capture --prompt @notes.txt -o notes.safetensors
  cachegen analyze --prompt-cache-file notes.safetensors"""


CONVERT_EXAMPLES = """\b
Examples:
  cachegen convert old.safetensors -o new.safetensors
  cachegen convert new.safetensors --layout B -o old.safetensors"""


@takes_options
def capture(
    *,
    artifact: CacheOptions,
    source: InputOptions,
) -> None:
    """Run a model over a prompt and write its cache as mlx-lm's prompt cache."""
    from cachegen_cli import captures, converting

    if source.prompt_cache_file is not None:
        raise UsageError("a prompt cache is captured already", "'cachegen convert' rewrites it")
    with console.progress(artifact.quiet) as progress:
        given = source.capture_options(artifact.quiet)
        found = captures.capture(given.pop("source"), **given, keep_cache=True, progress=progress)
        result = converting.write_capture(found, artifact.target_file, artifact.layout)
    artifact.deliver(result, result.messages)


@takes_options
def convert(
    *,
    file: Annotated[Path, typer.Argument(help="A prompt cache of any layout.", show_default=False)],
    artifact: CacheOptions,
) -> None:
    """Rewrite mlx-lm's prompt cache for another version of mlx-lm."""
    from cachegen_cli import converting

    result = converting.convert(file, artifact.target_file, artifact.layout)
    artifact.deliver(result, result.messages)
