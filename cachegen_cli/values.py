"""A layer's keys or values before any scheme, in the blocks of tokens that are quantized."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cachegen_cli.device import fused, mx, on_cpu, start
from cachegen_cli.errors import InputError
from cachegen_cli.rows import Rows
from cachegen_cli.schemes.base import Shared

# A tensor is quantized in blocks of tokens, which a CPU's caches hold and which take little
# memory beside it: so many, but not with less than so many elements.
_BLOCKS, _BLOCK_ELEMENTS = 16, 1 << 17
_GPU_BLOCK_ELEMENTS = 1 << 23  # a GPU's time goes into starting work, not into its size


class Block(NamedTuple):
    """Some tokens [H, t, D] of a tensor, and what settings have in common for them."""

    x: mx.array
    rows: Rows
    shared: Shared


class Values:
    """A layer's keys or values [H, T, D] before any scheme.

    What is coded starts after ``keep_first`` tokens and ends before ``keep_last``; where that
    leaves no token, there are no codes.

    Attributes:
        kept: [H, kept tokens, D] that stay as they are, ``first`` of them before the others.
    """

    def __init__(
        self,
        name: str,
        x: mx.array,
        rows: Rows,
        keep_first: int = 0,
        keep_last: int = 0,
    ) -> None:
        self.name = name
        self.heads, self.tokens, self.dim = x.shape
        self.first = min(keep_first, self.tokens)
        last = min(keep_last, self.tokens - self.first)
        self.kept = mx.concatenate([x[:, : self.first], x[:, self.tokens - last :]], axis=1)
        self.middle = x[:, self.first : self.tokens - last]
        self.rows = rows.cut(self.first, last)
        self._blocks: dict[int, list[Block]] = {}
        self._x, self._energies = x, list[mx.array]()
        for first, end in _spans(x.shape, 1):
            self._energies.append(fused(_energy)(x[:, first:end]))
            start([self._energies[-1], self.kept])

    @cached_property
    def signal(self) -> float:
        """Sum of all squares."""
        return summed(self._energies)

    def check(self) -> None:
        """Raise InputError if some values are not finite."""
        # squares of finite bfloat16 numbers may be infinite
        if not math.isfinite(self.signal) and not mx.isfinite(self._x).all().item():
            raise InputError(
                f"{self.name} hold NaN or infinite values",
                "a model that overflows its 16-bit dtype does this; try another precision",
            )

    def blocks(self, together: int) -> list[Block]:
        """What is coded, in blocks of multiples of so many tokens; 0 for all of them."""
        if together not in self._blocks:
            n = self.middle.shape[1]
            self._blocks[together] = [
                Block(self.middle[:, first:end], self.rows.cut(first, n - end), {})
                for first, end in _spans(self.middle.shape, together)
            ]
        return self._blocks[together]


def _spans(shape: tuple[int, ...], together: int) -> list[tuple[int, int]]:
    """(first token, end) of blocks of [H, T, D], of multiples of so many tokens; 0 for all."""
    heads, tokens, dim = shape
    elements = (
        max(_BLOCK_ELEMENTS, heads * tokens * dim // _BLOCKS) if on_cpu() else _GPU_BLOCK_ELEMENTS
    )
    size = elements // max(heads * dim, 1)
    step = max(size // together * together, together) if together else max(tokens, 1)
    return [(first, min(first + step, tokens)) for first in range(0, tokens, step)]


def summed(parts: list[mx.array]) -> float:
    """The sum of evaluated numbers, rounded to float32 only once: adding up millions in float32
    loses a thousandth.
    """
    return float(np.float32(sum(np.asarray(part).sum(dtype=np.float64) for part in parts)))


def _energy(x: mx.array) -> mx.array:
    """Sums of squares over tokens, [H, D]."""
    return mx.square(x.astype(mx.float32)).sum(axis=1)
