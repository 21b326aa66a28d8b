"""What a run found, as frozen dataclasses of raw numbers, to and from JSON.

Bytes are integers, ratios fractions of 1. Derived numbers stand in the JSON too, and are
derived again when it is read. Knows neither MLX nor a terminal.
"""

from cachegen_cli.results.files import LayerCheck, PackedFile, PackedFiles, Verification
from cachegen_cli.results.kinds import (
    KINDS,
    SCHEMA,
    Analysis,
    ModelList,
    ModelRow,
    Result,
    Sweep,
    from_json,
    to_json,
)
from cachegen_cli.results.run import ModelInfo, Notice, PromptInfo, Run, Skipped
from cachegen_cli.results.sizes import (
    Bytes,
    LayerResult,
    Measurement,
    Settings,
    TensorResult,
    total,
)

__all__ = [
    "KINDS",
    "SCHEMA",
    "Analysis",
    "Bytes",
    "LayerCheck",
    "LayerResult",
    "Measurement",
    "ModelInfo",
    "ModelList",
    "ModelRow",
    "Notice",
    "PackedFile",
    "PackedFiles",
    "PromptInfo",
    "Result",
    "Run",
    "Settings",
    "Skipped",
    "Sweep",
    "TensorResult",
    "Verification",
    "from_json",
    "to_json",
    "total",
]
