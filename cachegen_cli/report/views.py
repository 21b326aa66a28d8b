"""The view of each kind of result."""

from __future__ import annotations

import importlib

from cachegen_cli.report.table import View
from cachegen_cli.results.schema import Result

# kind -> its view, imported when it is shown
_VIEWS = {
    "analyze": ("analyses", "analysis_view"),
    "quality": ("qualities", "quality_view"),
    "sweep": ("analyses", "sweep_view"),
    "sensitivity": ("qualities", "sensitivity_view"),
    "plan": ("plans", "plan_view"),
    "compare": ("comparisons", "comparison_view"),
    "insights": ("observations", "insights_view"),
    "calibrate": ("calibrations", "calibration_view"),
    "models": ("analyses", "models_view"),
    "verify": ("files", "verification_view"),
    "file": ("files", "file_view"),
    "files": ("files", "files_view"),
    "differences": ("differences", "differences_view"),
    "prompt-cache": ("cachefiles", "cache_file_view"),
}


def view(result: Result, wide: bool) -> View:
    """The default or the wide view of any result."""
    module, name = _VIEWS[result.kind]
    shown: View = getattr(importlib.import_module(f"cachegen_cli.report.{module}"), name)(
        result, wide
    )
    return shown
