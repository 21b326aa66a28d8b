"""The view of each kind of result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cachegen_cli.report.analyses import analysis_view, models_view, sweep_view
from cachegen_cli.report.cachefiles import cache_file_view
from cachegen_cli.report.calibrations import calibration_view
from cachegen_cli.report.columns import View
from cachegen_cli.report.comparisons import comparison_view
from cachegen_cli.report.files import file_view, files_view, verification_view
from cachegen_cli.report.observations import insights_view
from cachegen_cli.report.qualities import plan_view, quality_view, sensitivity_view
from cachegen_cli.results import (
    Analysis,
    Calibration,
    Comparison,
    Insights,
    ModelList,
    PackedFile,
    PackedFiles,
    Plan,
    PromptCacheFile,
    QualityAnalysis,
    Result,
    Sensitivity,
    Sweep,
    Verification,
)

_VIEWS: dict[type[Result], Callable[[Any, bool], View]] = {
    Analysis: analysis_view,
    QualityAnalysis: quality_view,
    Sweep: sweep_view,
    Sensitivity: sensitivity_view,
    Plan: plan_view,
    Comparison: comparison_view,
    Insights: insights_view,
    ModelList: models_view,
    PackedFile: file_view,
    PackedFiles: files_view,
    Verification: verification_view,
    Calibration: calibration_view,
    PromptCacheFile: cache_file_view,
}


def view(result: Result, wide: bool) -> View:
    """The default or the wide view of any result."""
    return _VIEWS[type(result)](result, wide)
