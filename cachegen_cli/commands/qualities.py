"""Commands that let the model read on: quality, sensitivity and plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cachegen_cli.commands.running import run
from cachegen_cli.options import completions
from cachegen_cli.options.flatten import takes_options
from cachegen_cli.options.inputs import SharedOptions, TextOptions
from cachegen_cli.options.outputs import OutputOptions, PlanOptions
from cachegen_cli.options.profiling import ProfilingOptions
from cachegen_cli.options.settings import (
    CheckOptions,
    ContinuationOptions,
    EstimateOptions,
    GroupSize,
    SchemeOptions,
    WidthOptions,
)
from cachegen_cli.options.types import Integers, Names, Size, list_option

QUALITY_EXAMPLES = """\b
Examples:
  cachegen quality
  cachegen quality --bits 3 --prompt @notes.txt --prompt @code.py
  cachegen quality --schedule plan.json --prompt @texts.jsonl --text-key content
  cachegen quality --fail-if-kl-above 0.02 --json | jq .quality.kl_nats"""

SENSITIVITY_EXAMPLES = """\b
Examples:
  cachegen sensitivity
  cachegen sensitivity --bits 3 -o sensitivity.csv"""

COMPARE_EXAMPLES = """\b
Examples:
  cachegen compare
  cachegen compare --schemes group,mlx,uniform --at-kl 0.01 --wide
  cachegen compare --at-bits 3 --prompt @notes.txt -o compare.json
  cachegen compare --profile smollm.safetensors --prompt @notes.txt"""

INSIGHTS_EXAMPLES = """\b
Examples:
  cachegen insights --no-sensitivity
  cachegen insights --prompt @notes.txt -o insights.md"""

PLAN_EXAMPLES = """\b
Examples:
  cachegen plan --target-bits 4 -o plan.json
  cachegen plan --target-kl 0.01 --choices 3,4,5,6
  cachegen pack --schedule plan.json --prompt @notes.txt -o notes.cgkv"""


@takes_options
def quality(
    *,
    widths: WidthOptions,
    quantizer: EstimateOptions,
    continuation: ContinuationOptions,
    checks: CheckOptions,
    source: SharedOptions,
    output: OutputOptions,
    profiling: ProfilingOptions,
) -> None:
    """Measure KL, perplexity and agreement after a compressed cache.

    The text's last tokens are its continuation. The model reads them once after the untouched
    cache of what comes before and once after the compressed one, with every true token given.
    Their own keys and values are not compressed: KV is loaded, and generation goes on.
    """
    from cachegen_cli import analysis
    from cachegen_cli.results.analyses import QualityAnalysis

    def measured(**arguments: Any) -> QualityAnalysis:
        found = analysis.analyze(**arguments, quality=True)
        return QualityAnalysis(found.run, found.measurement)

    asked = vars(widths) | vars(quantizer) | vars(continuation)
    result = run(measured, source, output, profiling, checks=checks, **asked)
    checks.hold([result.measurement])


@takes_options
def sensitivity(
    *,
    widths: WidthOptions,
    scheme: SchemeOptions,
    continuation: ContinuationOptions,
    source: TextOptions,
    output: OutputOptions,
    profiling: ProfilingOptions,
) -> None:
    """Measure KL with only one layer's keys, or only its values, compressed.

    Takes 2 x layers + 1 readings of the continuation.
    """
    from cachegen_cli import sensitivities

    settings = widths.settings(scheme)
    run(
        sensitivities.sensitivity,
        source,
        output,
        profiling,
        settings=settings,
        **vars(continuation),
    )


@takes_options
def compare(
    *,
    schemes: Annotated[
        Names | None,
        typer.Option(
            parser=Names.parse,
            metavar="NAME,NAME,...",
            autocompletion=completions.schemes,
            help="Schemes to compare. Default: all that can be.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="What 'calibrate' made: adds transform, and cachegen's symbol tables.",
        ),
    ] = None,
    at_kl: Annotated[
        float | None,
        typer.Option(metavar="X", help="Compare at a KL of X nats. Default: that of mlx 4 bits."),
    ] = None,
    at_bits: Annotated[
        float | None, typer.Option(metavar="B", help="Compare at B coded bits an element.")
    ] = None,
    continuation: ContinuationOptions,
    source: TextOptions,
    output: OutputOptions,
    profiling: ProfilingOptions,
) -> None:
    """Compare schemes at equal quality or equal size, each measured ever nearer to it."""
    from cachegen_cli import comparing

    run(
        comparing.compare,
        source,
        output,
        profiling,
        schemes=schemes,
        profile=profile,
        at_kl=at_kl,
        at_bits=at_bits,
        **vars(continuation),
    )


@takes_options
def insights(
    *,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity/--no-sensitivity",
            help="Measure sensitivity by layer, too: 2 x layers + 1 readings of the continuation.",
        ),
    ] = True,
    continuation: ContinuationOptions,
    source: TextOptions,
    output: OutputOptions,
    profiling: ProfilingOptions,
) -> None:
    """Measure the CacheGen paper's observations on this model and prompt."""
    from cachegen_cli import insights as room

    run(
        room.insights, source, output, profiling, reads_on=sensitivity,
        with_sensitivity=sensitivity, **vars(continuation),
    )  # fmt: skip


@takes_options
def plan(
    *,
    target_kl: Annotated[
        float | None,
        typer.Option(metavar="X", help="Fewest bytes at a KL of at most X nats."),
    ] = None,
    target_bytes: Annotated[
        Size | None,
        typer.Option(
            parser=Size.parse,
            metavar="N",
            help="Lowest KL in N coded bytes, like 3500000, 3500kB or 3.5MB.",
        ),
    ] = None,
    target_bits: Annotated[
        float | None,
        typer.Option(metavar="B", help="Lowest KL in B coded bits an element."),
    ] = None,
    choices: Annotated[Integers, list_option("Widths to choose from.")] = "2,3,4,5,6,8",  # type: ignore[assignment]
    group_size: GroupSize = None,
    scheme: SchemeOptions,
    continuation: ContinuationOptions,
    source: TextOptions,
    output: PlanOptions,
    profiling: ProfilingOptions,
) -> None:
    """Pick a width for each layer's keys and values that meets a target.

    Takes at most 2 x layers + 2 x choices readings of the continuation. The plan is measured,
    not only predicted. -o writes it for --schedule FILE of other commands.
    """
    from cachegen_cli import planning
    from cachegen_cli.schedules import settings_of

    run(
        planning.plan,
        source,
        output,
        profiling,
        target_kl=target_kl,
        target_bytes=target_bytes,
        target_bits=target_bits,
        choices=choices,
        settings=settings_of(group_size=group_size, **vars(scheme)),
        **vars(continuation),
    )
