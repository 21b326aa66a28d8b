"""What is shown of the paper's observations."""

from __future__ import annotations

from cachegen_cli.report.columns import skipped_notes, title_of
from cachegen_cli.report.table import Column, View
from cachegen_cli.report.units import rounded
from cachegen_cli.results.insights import Insights
from cachegen_cli.results.settings import Settings


def insights_view(result: Insights, wide: bool) -> View:
    """A row a figure."""
    columns = (
        Column("observation", "mean over layers", left=True, folds=True, names=True),
        Column("tensor", "of", left=True, names=True),
        Column("measured", "here", rounded),
        Column("null", "by chance", rounded),
        Column("paper", "paper", left=True),
    )
    notes = [
        *result.verdicts,
        "by chance: the same with each channel's tokens shuffled in time; for entropies, with each "
        "token's channels shuffled. Variances and autocorrelations are within channels, keys as "
        "they are cached. Entropies are of the shipped codec's codes, corrected for few tokens "
        "(Miller and Madow), without tables. Anchors + deltas: a reading of section 5.2, which "
        "leaves the unit of its bin sizes open.",
        *skipped_notes(result.run),
    ]
    rows = [vars(finding) for finding in result.findings]
    return View(title_of(result.run, Settings(), grid=True), columns, rows, notes=notes)
