"""The Typer app: its commands and their examples."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from cachegen_cli import __version__, console
from cachegen_cli.commands import analyses, calibrations, files, qualities
from cachegen_cli.ranks import is_first

app = typer.Typer(
    name="cachegen",
    help="What entropy-coding a language model's KV cache would really save.",
    no_args_is_help=True,
    rich_markup_mode=None,  # Rich would take longer than all the rest of --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        console.print_result(f"cachegen {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """What entropy-coding a language model's KV cache would really save."""


# under mlx.launch these share out the work; for the rest one process does it
SHARED = (analyses.analyze, analyses.sweep, qualities.quality)


def alone(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which rank 0 runs while the others have nothing to do."""

    @functools.wraps(command)
    def first(**options: Any) -> None:
        if is_first():
            command(**options)

    first.__signature__ = inspect.signature(command)  # type: ignore[attr-defined]
    first.__annotations__ = command.__annotations__
    del first.__wrapped__
    return first


for command, examples in (
    (analyses.analyze, analyses.ANALYZE_EXAMPLES),
    (analyses.sweep, analyses.SWEEP_EXAMPLES),
    (qualities.quality, qualities.QUALITY_EXAMPLES),
    (qualities.sensitivity, qualities.SENSITIVITY_EXAMPLES),
    (calibrations.calibrate, calibrations.CALIBRATE_EXAMPLES),
    (qualities.compare, qualities.COMPARE_EXAMPLES),
    (qualities.insights, qualities.INSIGHTS_EXAMPLES),
    (qualities.plan, qualities.PLAN_EXAMPLES),
    (analyses.models, analyses.MODELS_EXAMPLES),
    (analyses.verify, analyses.VERIFY_EXAMPLES),
    (files.pack, files.PACK_EXAMPLES),
    (files.unpack, files.UNPACK_EXAMPLES),
    (files.inspect, files.INSPECT_EXAMPLES),
    (files.capture, files.CAPTURE_EXAMPLES),
    (files.convert, files.CONVERT_EXAMPLES),
):
    app.command(epilog=examples)(command if command in SHARED else alone(command))
