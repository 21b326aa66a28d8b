"""What a run found, as frozen dataclasses of raw numbers, to and from JSON.

Bytes are integers, ratios fractions of 1. Derived numbers stand in the JSON too, and are
derived again when it is read. Knows neither MLX nor a terminal.
"""

from cachegen_cli.results.cachefile import CacheEntry, PromptCacheFile
from cachegen_cli.results.comparison import Comparison, Standing, curve_of
from cachegen_cli.results.files import LayerCheck, PackedFile, PackedFiles, Verification
from cachegen_cli.results.insights import Finding, Insights
from cachegen_cli.results.kinds import (
    KINDS,
    SCHEMA,
    Analysis,
    ModelList,
    ModelRow,
    QualityAnalysis,
    Result,
    Sweep,
    from_json,
    to_json,
)
from cachegen_cli.results.measurements import Measurement, TextResult, over_texts
from cachegen_cli.results.planning import (
    Candidate,
    Plan,
    Sensitivity,
    Target,
    TensorSensitivity,
)
from cachegen_cli.results.profile import CalibratedUnit, Calibration, ProfileInfo
from cachegen_cli.results.quality import Quality
from cachegen_cli.results.run import ModelInfo, Notice, PromptInfo, Run, Skipped
from cachegen_cli.results.settings import PlannedWidths, Settings
from cachegen_cli.results.sizes import Bytes, LayerResult, TensorResult, joined_heads, total
from cachegen_cli.results.spans import Entry, index_of, shifted, spans

__all__ = [
    "KINDS",
    "SCHEMA",
    "Analysis",
    "Bytes",
    "CacheEntry",
    "CalibratedUnit",
    "Calibration",
    "Candidate",
    "Comparison",
    "Entry",
    "Finding",
    "Insights",
    "LayerCheck",
    "LayerResult",
    "Measurement",
    "ModelInfo",
    "ModelList",
    "ModelRow",
    "Notice",
    "PackedFile",
    "PackedFiles",
    "Plan",
    "PlannedWidths",
    "ProfileInfo",
    "PromptCacheFile",
    "PromptInfo",
    "Quality",
    "QualityAnalysis",
    "Result",
    "Run",
    "Sensitivity",
    "Settings",
    "Skipped",
    "Standing",
    "Sweep",
    "Target",
    "TensorResult",
    "TensorSensitivity",
    "TextResult",
    "Verification",
    "curve_of",
    "from_json",
    "index_of",
    "joined_heads",
    "over_texts",
    "shifted",
    "spans",
    "to_json",
    "total",
]
