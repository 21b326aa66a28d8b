"""Commands that measure sizes."""

from __future__ import annotations

from typing import Annotated

import typer

from cachegen_cli.commands.running import run
from cachegen_cli.errors import CHECK_FAILED, UsageError
from cachegen_cli.options.flatten import takes_options
from cachegen_cli.options.inputs import InputOptions, SharedOptions
from cachegen_cli.options.outputs import OutputOptions
from cachegen_cli.options.profiling import ProfilingOptions
from cachegen_cli.options.settings import (
    GROUP_SIZE_HELP,
    CheckOptions,
    EstimateOptions,
    QualityOptions,
    QuantizerOptions,
    WidthOptions,
)
from cachegen_cli.options.types import Integers, list_option
from cachegen_cli.output import WHOLE

ANALYZE_EXAMPLES = """\b
Examples:
  cachegen analyze
  cachegen analyze --model OWNER/NAME --prompt @notes.txt --bits 3
  cachegen analyze --key-bits 8 --value-bits 4 --wide
  cachegen analyze --quality --fail-if-kl-above 0.02
  cachegen analyze --json | jq .totals"""


SWEEP_EXAMPLES = """\b
Examples:
  cachegen sweep --bits 2,3,4,8
  cachegen sweep --bits 2,4 --group-size 32,64 -o sweep.csv
  cachegen sweep --quality --bits 2,3,4,5,6,8 --wide
  cachegen sweep --prompt - --json < notes.txt | jq '.rows[].totals'"""


VERIFY_EXAMPLES = """\b
Examples:
  cachegen verify
  cachegen verify --bits 3 --prompt @notes.txt && echo sound"""


@takes_options
def analyze(
    *,
    detail: Annotated[
        bool,
        typer.Option(
            "--detail",
            help="Put histograms of codes and bits by group of channels into JSON and HTML.",
        ),
    ] = False,
    widths: WidthOptions,
    quantizer: EstimateOptions,
    quality: QualityOptions,
    checks: CheckOptions,
    source: SharedOptions,
    output: OutputOptions,
    profiling: ProfilingOptions,
) -> None:
    """Compare 16-bit, fixed-width, entropy and coded bytes by layer."""
    from cachegen_cli import analysis

    if detail and output.chosen not in WHOLE:
        raise UsageError(
            f"{output.chosen} has no place for --detail", "take --json, or -o FILE.json or .html"
        )
    asked = quality.asked(checks)
    result = run(
        analysis.analyze, source, output, profiling, reads_on=asked["quality"], checks=checks,
        detail=detail, **vars(widths), **vars(quantizer), **asked,
    )  # fmt: skip
    checks.hold([result.measurement])


@takes_options
def sweep(
    *,
    bits: Annotated[
        Integers | None, list_option("Code widths, each 1 to 8. Default: 2,3,4,8.")
    ] = None,
    group_size: Annotated[
        Integers | None, list_option(f"{GROUP_SIZE_HELP} Several make a grid.")
    ] = None,
    quantizer: EstimateOptions,
    quality: QualityOptions,
    checks: CheckOptions,
    source: SharedOptions,
    output: OutputOptions,
    profiling: ProfilingOptions,
) -> None:
    """Measure several widths and group sizes with one run of the model."""
    from cachegen_cli import analysis

    asked = quality.asked(checks)
    result = run(
        analysis.sweep, source, output, profiling, reads_on=asked["quality"], checks=checks,
        bits=bits, group_sizes=group_size, **vars(quantizer), **asked,
    )  # fmt: skip
    checks.hold(result.rows)


@takes_options
def verify(
    *,
    widths: WidthOptions,
    quantizer: QuantizerOptions,
    source: InputOptions,
    output: OutputOptions,
    profiling: ProfilingOptions,
) -> None:
    """Encode and decode every layer for real; exit 3 if one fails."""
    from cachegen_cli import verification

    settings = widths.settings(quantizer)
    result = run(verification.verify, source, output, profiling, reads_on=False, settings=settings)
    if not result.passed:
        raise typer.Exit(CHECK_FAILED)
