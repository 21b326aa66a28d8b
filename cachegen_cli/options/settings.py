"""How to quantize, what to measure, and what must hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cachegen_cli import console
from cachegen_cli.errors import CHECK_FAILED, UsageError
from cachegen_cli.options import completions
from cachegen_cli.options.types import Percent

if TYPE_CHECKING:  # --help needs no results
    from cachegen_cli.results.measurements import Measurement
    from cachegen_cli.results.settings import Settings


@dataclass(frozen=True)
class ContinuationOptions:
    """How much of a text quality is measured on."""

    continuation: Annotated[
        int | None,
        typer.Option(
            "--continuation",
            metavar="N",
            min=2,
            help="Measure quality on the last N tokens of each text, which the model reads after "
            "the compressed cache of the others. Default: 256, at most half of the text.",
        ),
    ] = None


@dataclass(frozen=True)
class QualityOptions(ContinuationOptions):
    """Whether to measure quality."""

    quality: Annotated[
        bool, typer.Option("--quality", help="Measure KL and perplexity, too (see 'quality').")
    ] = False

    def asked(self, checks: CheckOptions) -> dict[str, Any]:
        """Arguments of `analysis.analyze`; a check or a continuation asks for quality, too."""
        asked = self.quality or self.continuation is not None or checks.fail_if_kl_above is not None
        return {"quality": asked, "continuation": self.continuation}


@dataclass(frozen=True)
class CheckOptions:
    """What must hold; exit code 3 if it does not."""

    fail_if_kl_above: Annotated[
        float | None,
        typer.Option(
            "--fail-if-kl-above", metavar="X", help="Measure quality; exit 3 if KL exceeds X nats."
        ),
    ] = None
    fail_if_saving_below: Annotated[
        Percent | None,
        typer.Option(
            "--fail-if-saving-below",
            parser=Percent.parse,
            metavar="P%",
            help="Exit 3 if coding saves less than P % of the fixed width.",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse thresholds that nothing can pass or fail."""
        if self.fail_if_kl_above is not None and not 0 <= self.fail_if_kl_above < inf:
            raise UsageError(f"{self.fail_if_kl_above} is no KL", "it is a number from 0 on")

    def check_applies(self, source: Any) -> None:
        """Refuse a check of KL, before it is measured, where none of it is the settings' doing.

        Raises:
            InputError: ``source`` is a cache of codes of its own alone.
        """
        from cachegen_cli.captures import Capture
        from cachegen_cli.notices import check_applies

        if self.fail_if_kl_above is not None and isinstance(source, Capture):
            check_applies(source, "--fail-if-kl-above")

    def hold(self, measured: Sequence[Measurement]) -> None:
        """Say on stderr whether every setting passes.

        Raises:
            typer.Exit: 3, if one does not.
        """
        from cachegen_cli.checks import verdicts

        found = verdicts(measured, self.fail_if_kl_above, self.fail_if_saving_below)
        for verdict in found:
            console.note(str(verdict))
        if not all(verdict.passed for verdict in found):
            raise typer.Exit(CHECK_FAILED)


@dataclass(frozen=True)
class SchemeOptions:
    """How values become codes, and which stay."""

    scheme: Annotated[
        str,
        typer.Option(
            "--scheme",
            metavar="NAME[:KEY=N,...]",
            autocompletion=completions.schemes,
            help="group (min/max groups of tokens), mlx (mlx-lm's quantized cache; "
            "group_size), cachegen (LMCache's codec; bins, chunk), uniform (one step a tensor; "
            "error, step, bits or kl), transform (one step in a calibrated basis; error, step, "
            "bits, kl, basis) or exact (no loss).",
        ),
    ] = "group"
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile", metavar="FILE", help="What 'calibrate' made, for transform and cachegen."
        ),
    ] = None
    keep_first: Annotated[
        int,
        typer.Option("--keep-first", metavar="N", min=0, help="Leave first N tokens in 16 bits."),
    ] = 0
    keep_last: Annotated[
        int,
        typer.Option("--keep-last", metavar="N", min=0, help="Leave last N tokens in 16 bits."),
    ] = 0


@dataclass(frozen=True)
class QuantizerOptions(SchemeOptions):
    """Options for how codes are made, beside their width and group size."""

    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            metavar="uniform|depth|FILE",
            autocompletion=completions.schedules,
            help="depth: one bit fewer in the middle third of the layers, two in the last, never "
            "below 2 bits. FILE: the widths of 'cachegen plan -o FILE'.",
        ),
    ] = "uniform"
    delta: Annotated[
        Literal["auto", "on", "off"],
        typer.Option(
            "--delta",
            help="Code differences of consecutive tokens; auto: where that is smaller.",
        ),
    ] = "auto"


@dataclass(frozen=True)
class EstimateOptions(QuantizerOptions):
    """Options for how codes are made, and how their entropy is estimated."""

    pooled: Annotated[
        bool,
        typer.Option(
            "--pooled/--by-channel",
            help="Entropy estimate with one distribution a head, or one a head and channel.",
        ),
    ] = False


GROUP_SIZE_HELP = (
    "Tokens a group, 32 by default; of mlx channels a group: 32, 64 (by default) or 128."
)
GroupSize = Annotated[int | None, typer.Option(min=1, metavar="N", help=GROUP_SIZE_HELP)]


@dataclass(frozen=True)
class WidthOptions:
    """Code widths and group size of one setting."""

    bits: Annotated[
        int | None, typer.Option(min=1, max=8, metavar="N", help="Code width, 1 to 8. Default: 4.")
    ] = None
    key_bits: Annotated[
        int | None, typer.Option(min=1, max=8, metavar="N", help="Keys' width instead of --bits.")
    ] = None
    value_bits: Annotated[
        int | None, typer.Option(min=1, max=8, metavar="N", help="Values' width instead of --bits.")
    ] = None
    group_size: GroupSize = None

    def settings(self, others: SchemeOptions) -> Settings:
        """The setting that both groups of options make.

        Raises:
            CachegenError: as in `settings_of`.
        """
        from cachegen_cli.schedules import settings_of

        return settings_of(**vars(self), **vars(others))
