"""What entropy-coding a language model's KV cache would really save, measured on MLX.

>>> from cachegen_cli import analyze
>>> result = analyze(prompt="The tide came in over the flats.", bits=4)
>>> result.measurement.totals.entropy_saving
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# public name -> the module that holds it, imported on first use: MLX is not needed for --help
_HOMES = {
    "cachegen_cli.analysis": ("analyze", "sweep"),
    "cachegen_cli.calibrating": ("calibrate",),
    "cachegen_cli.captures": ("Capture", "capture", "capture_texts"),
    "cachegen_cli.catalog": ("list_models",),
    "cachegen_cli.coding": ("decode", "encode"),
    "cachegen_cli.comparing": ("compare",),
    "cachegen_cli.converting": ("convert", "write_capture"),
    "cachegen_cli.entropy": (
        "entropy_coded_bytes", "entropy_coded_bytes_batched", "fixed_width_bytes",
        "fixed_width_bytes_batched", "symbol_entropy_bits", "token_delta", "token_delta_batched",
    ),
    "cachegen_cli.errors": (
        "CachegenError", "InputError", "ModelError", "OutputError", "UsageError",
    ),
    "cachegen_cli.filed": ("capture_file",),
    "cachegen_cli.model": ("Model", "load_model"),
    "cachegen_cli.packing": ("pack",),
    "cachegen_cli.planning": ("plan",),
    "cachegen_cli.profilefiles": ("load_profile",),
    "cachegen_cli.profiles": ("Profile",),
    "cachegen_cli.prompt": ("Prompt", "read_prompt", "read_prompts"),
    "cachegen_cli.quantize": (
        "CodeStream", "cachegen_quant_dequant", "dequant_codes", "dequant_codes_batched",
        "layer_group_bits", "quantize_to_codes", "quantize_to_codes_batched",
    ),
    "cachegen_cli.report": ("render",),
    "cachegen_cli.results.analyses": ("Analysis", "QualityAnalysis", "Sweep"),
    "cachegen_cli.results.measurements": ("Measurement",),
    "cachegen_cli.results.models": ("ModelList",),
    "cachegen_cli.results.planning": ("Plan", "Sensitivity"),
    "cachegen_cli.results.quality": ("Quality",),
    "cachegen_cli.results.schema": ("from_json", "to_json"),
    "cachegen_cli.results.settings": ("Settings",),
    "cachegen_cli.sensitivities": ("sensitivity",),
    "cachegen_cli.unpacking": ("inspect", "load_packed", "unpack"),
    "cachegen_cli.verification": ("verify",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'cachegen_cli' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
