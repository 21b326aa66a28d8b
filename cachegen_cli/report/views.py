"""The view of each kind of result."""

from __future__ import annotations

from cachegen_cli.report.analyses import analysis_view, models_view, sweep_view
from cachegen_cli.report.columns import View
from cachegen_cli.report.comparisons import comparison_view
from cachegen_cli.report.files import file_view, files_view, verification_view
from cachegen_cli.report.observations import insights_view
from cachegen_cli.report.qualities import plan_view, quality_view, sensitivity_view
from cachegen_cli.results import (
    Analysis,
    Comparison,
    Insights,
    PackedFile,
    PackedFiles,
    Plan,
    QualityAnalysis,
    Result,
    Sensitivity,
    Sweep,
    Verification,
)


def view(result: Result, wide: bool) -> View:
    """The default or the wide view of any result."""
    if isinstance(result, QualityAnalysis):  # an Analysis, too
        return quality_view(result, wide)
    if isinstance(result, Sensitivity):
        return sensitivity_view(result, wide)
    if isinstance(result, Comparison):
        return comparison_view(result, wide)
    if isinstance(result, Insights):
        return insights_view(result, wide)
    if isinstance(result, Plan):
        return plan_view(result, wide)
    if isinstance(result, Analysis):
        return analysis_view(result, wide)
    if isinstance(result, Sweep):
        return sweep_view(result, wide)
    if isinstance(result, PackedFile):
        return file_view(result, wide)
    if isinstance(result, PackedFiles):
        return files_view(result)
    if isinstance(result, Verification):
        return verification_view(result)
    return models_view(result, wide)
