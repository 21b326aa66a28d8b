"""Rounding of float32 values to a 16-bit dtype."""

from __future__ import annotations

from cachegen_cli.device import mx
from cachegen_cli.errors import InputError


def clipped(values: mx.array, dtype: mx.Dtype) -> mx.array:
    """Cast float32 values to a dtype; those beyond its range become its largest numbers."""
    largest = float(mx.finfo(dtype).max)
    return mx.clip(values, -largest, largest).astype(dtype)


def beyond_float16(name: str) -> InputError:
    """Return the refusal of finite numbers that became infinite when they were cast to float16."""
    return InputError(
        f"{name} hold float32 numbers that float16 does not, whose largest is 65504",
        "take a cache or a model in bfloat16, which holds them",
    )
