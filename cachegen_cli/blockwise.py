"""The blocks of tokens in which a tensor is worked on, and sums over all of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from cachegen_cli.device import mx, on_cpu

# A tensor is quantized in blocks of tokens, which a CPU's caches hold and which take little
# memory beside it: so many, but not with less than so many elements.
_BLOCKS, _BLOCK_ELEMENTS = 16, 1 << 17
_GPU_BLOCK_ELEMENTS = 1 << 23  # a GPU's time goes into starting work, not into its size
_SMALLEST_SQUARE = 2.0**-100  # in the mean: float32 loses those below 2^-126


def spans(shape: tuple[int, ...], together: int = 1) -> list[tuple[int, int]]:
    """(first token, end) of blocks of [H, T, D], of multiples of so many tokens; 0 for all."""
    heads, tokens, dim = shape
    elements = (
        max(_BLOCK_ELEMENTS, heads * tokens * dim // _BLOCKS) if on_cpu() else _GPU_BLOCK_ELEMENTS
    )
    size = elements // max(heads * dim, 1)
    step = max(size // together * together, together) if together else max(tokens, 1)
    return [(first, min(first + step, tokens)) for first in range(0, tokens, step)]


def total(parts: list[mx.array]) -> npt.NDArray[np.float64]:
    """The sum of evaluated arrays of one shape; float32 would lose a thousandth of millions."""
    return np.sum([np.asarray(part, np.float64) for part in parts], axis=0)


def float32_holds(energy: float, elements: int) -> bool:
    """Return whether float32 could add up squares: none was infinite, none lost that counts."""
    return math.isfinite(energy) and energy > elements * _SMALLEST_SQUARE


def in_float64(x: mx.array) -> npt.NDArray[np.float64]:
    """Return an array of any dtype on the host."""
    return np.asarray(x.astype(mx.float32), np.float64)


def summed(parts: list[mx.array]) -> float:
    """The sum of all evaluated numbers, rounded to float32 only once; infinite beyond that."""
    found = sum(float(np.asarray(part).sum(dtype=np.float64)) for part in parts)
    return float(np.float32(found)) if abs(found) < np.finfo(np.float32).max else math.inf * found
