"""What is shown of the paper's observations."""

from __future__ import annotations

from cachegen_cli.report.columns import skipped_notes, title_of
from cachegen_cli.report.table import Column, View
from cachegen_cli.report.units import rounded
from cachegen_cli.results.insights import Insights
from cachegen_cli.results.settings import Settings

_BY_CHANCE = (
    "by chance: the same with each channel's tokens shuffled in time; for entropies by channel, "
    "with each token's channels shuffled."
)


def insights_view(result: Insights, wide: bool) -> View:
    """A row a figure."""
    columns = (
        Column("observation", "mean over layers", left=True, folds=True, names=True),
        Column("tensor", "of", left=True, names=True),
        Column("measured", "here", rounded),
        Column("null", "by chance", rounded, about=_BY_CHANCE),
        Column("paper", "paper", left=True),
    )
    notes = [
        *result.verdicts,
        "Variances and autocorrelations are within channels, keys as they are cached. Entropies "
        "are of the shipped codec's codes, without tables, and corrected for few tokens (Miller "
        "and Madow), but for those of each object of 256 tokens, whose tables are its own. Anchors "
        "+ deltas: a reading of section 5.2, which leaves the unit of its bin sizes open; what "
        "anchors take is estimated from all tokens, as a tenth of them are too few; of less than "
        "some 300 tokens it is still too little.",
        *skipped_notes(result.run),
    ]
    rows = [vars(finding) for finding in result.findings]
    return View(title_of(result.run, Settings(), grid=True), columns, rows, notes=notes)
