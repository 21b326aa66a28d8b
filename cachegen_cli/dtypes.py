"""What a dtype holds."""

from __future__ import annotations

from cachegen_cli.device import mx


def clipped(values: mx.array, dtype: mx.Dtype) -> mx.array:
    """Cast float32 values to a dtype; those beyond its range become its largest numbers."""
    largest = float(mx.finfo(dtype).max)
    return mx.clip(values, -largest, largest).astype(dtype)
