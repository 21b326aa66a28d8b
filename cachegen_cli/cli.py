"""The commands: each parses, calls one library function and delivers the result."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cachegen_cli import __version__, console
from cachegen_cli.options import (
    InputOptions,
    Integers,
    OutputOptions,
    QuantizerOptions,
    takes_options,
)

app = typer.Typer(
    name="cachegen",
    help="What entropy-coding a language model's KV cache would really save.",
    no_args_is_help=True,
    rich_markup_mode=None,  # Rich would take longer than all the rest of --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_ANALYZE_EXAMPLES = """\b
Examples:
  cachegen analyze
  cachegen analyze --model OWNER/NAME --prompt @notes.txt --bits 3
  cachegen analyze --key-bits 8 --value-bits 4 --wide
  cachegen analyze --json | jq .totals"""

_SWEEP_EXAMPLES = """\b
Examples:
  cachegen sweep --bits 2,3,4,8
  cachegen sweep --bits 2,4 --group-size 32,64 -o sweep.csv
  cachegen sweep --prompt - --json < notes.txt | jq '.rows[].totals'"""

_MODELS_EXAMPLES = """\b
Examples:
  cachegen models
  cachegen models --json | jq -r '.models[].id'"""


def _width_option(help: str) -> Any:
    return typer.Option(min=1, max=8, metavar="N", help=help)


def _list_option(help: str) -> Any:
    return typer.Option(parser=Integers.parse, metavar="N,N,...", help=help)


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


@app.command(epilog=_ANALYZE_EXAMPLES)
@takes_options
def analyze(
    *,
    bits: Annotated[int, _width_option("Code width, 1 to 8.")] = 4,
    key_bits: Annotated[int | None, _width_option("Keys' width instead of --bits.")] = None,
    value_bits: Annotated[int | None, _width_option("Values' width instead of --bits.")] = None,
    group_size: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens a group.")] = 32,
    quantizer: QuantizerOptions,
    source: InputOptions,
    output: OutputOptions,
) -> None:
    """Compare 16-bit, fixed-width and entropy-coded bytes by layer."""
    from cachegen_cli import analysis

    prepared = source.capture_options(quiet=output.quiet)
    with console.progress(output.quiet) as progress:
        result = analysis.analyze(
            **prepared,
            **vars(quantizer),
            bits=bits,
            key_bits=key_bits,
            value_bits=value_bits,
            group_size=group_size,
            progress=progress,
        )
    output.deliver(result, [notice.message for notice in result.run.warnings])


@app.command(epilog=_SWEEP_EXAMPLES)
@takes_options
def sweep(
    *,
    bits: Annotated[Integers, _list_option("Code widths, each 1 to 8.")] = "2,3,4,8",  # type: ignore[assignment]
    group_size: Annotated[Integers, _list_option("Tokens a group; several make a grid.")] = "32",  # type: ignore[assignment]
    quantizer: QuantizerOptions,
    source: InputOptions,
    output: OutputOptions,
) -> None:
    """Measure several widths and group sizes with one run of the model."""
    from cachegen_cli import analysis

    prepared = source.capture_options(quiet=output.quiet)
    with console.progress(output.quiet) as progress:
        result = analysis.sweep(
            **prepared,
            **vars(quantizer),
            bits=bits,
            group_sizes=group_size,
            progress=progress,
        )
    output.deliver(result, [notice.message for notice in result.run.warnings])


@app.command(epilog=_MODELS_EXAMPLES)
@takes_options
def models(output: OutputOptions) -> None:
    """List the models on this machine and their KV cache sizes."""
    from cachegen_cli.catalog import list_models

    with console.progress(output.quiet) as progress:
        result = list_models(progress)
    output.deliver(result)
