"""What a page shows of each kind of result: headline figures and charts."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import NamedTuple

from cachegen_cli.report.units import bits, error, percent, plus_minus, si_bytes
from cachegen_cli.results.quality import Quality
from cachegen_cli.results.schema import Result
from cachegen_cli.results.sizes import Bytes
from cachegen_cli.wording import counted


class Headline(NamedTuple):
    """A figure, what it is, and against what."""

    figure: str
    name: str
    against: str


@dataclass(frozen=True)
class Panel:
    """A part of a page: chart or table, a sentence on it, and the table behind a chart."""

    title: str
    body: str
    about: str
    table: str = ""


Shown = tuple[list[Headline], list[Panel]]

# kind -> what makes its panels; the rest have their table alone
_MADE = {
    "analyze": ("layers", "analysis_panels"),
    "quality": ("layers", "analysis_panels"),
    "sensitivity": ("layers", "sensitivity_panels"),
    "differences": ("layers", "differences_panels"),
    "sweep": ("tradeoffs", "sweep_panels"),
    "compare": ("tradeoffs", "comparison_panels"),
    "plan": ("tradeoffs", "plan_panels"),
}


def panels_of(result: Result) -> Shown:
    """Headline figures and charts of a result."""
    if result.kind not in _MADE:
        return [], []
    module, name = _MADE[result.kind]
    room = importlib.import_module(f"cachegen_cli.report.html.{module}")
    shown: Shown = getattr(room, name)(result)
    return shown


def sizes(totals: Bytes) -> list[Headline]:
    """Coded bytes, what coding saves, and bits an element."""
    raw, fixed = si_bytes(totals.raw_bytes), si_bytes(totals.fixed_bytes)
    if not totals.coded_bytes:
        return [Headline(si_bytes(totals.entropy_bytes), "entropy estimate", f"16-bit: {raw}")]
    times = totals.raw_bytes / totals.coded_bytes
    return [
        Headline(
            si_bytes(totals.coded_bytes), "coded", f"16-bit: {raw}, {times:.2f} times as much"
        ),
        Headline(
            percent(totals.coded_saving), "saved by entropy coding", f"of the fixed width, {fixed}"
        ),
        Headline(
            bits(totals.coded_bits_per_element),
            "bits an element",
            "of 16, with tables, headers and parameters",
        ),
    ]


def loss(quality: Quality | None) -> list[Headline]:
    """What the cache does to predictions, where that was measured."""
    if quality is None:
        return []
    return [
        Headline(
            plus_minus(quality.kl_nats, quality.kl_nats_margin),
            "KL divergence, nats a token",
            f"against the untouched cache, over {counted(quality.positions, 'position')}",
        ),
        Headline(
            error(quality.perplexity_difference),
            "change of perplexity",
            f"from {quality.reference_perplexity:.4g}",
        ),
    ]
