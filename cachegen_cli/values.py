"""A layer's keys or values before any scheme, in the blocks of tokens that are quantized."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cachegen_cli.blockwise import float32_holds, in_float64, spans, summed
from cachegen_cli.device import fused, mx, start
from cachegen_cli.dtypes import beyond_float16
from cachegen_cli.errors import InputError
from cachegen_cli.rows import Rows
from cachegen_cli.schemes.base import Shared


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
        from_float32: bool = False,
    ) -> None:
        self.name, self.from_float32 = name, from_float32
        self.heads, self.tokens, self.dim = x.shape
        self.first = min(keep_first, self.tokens)
        last = min(keep_last, self.tokens - self.first)
        self.kept = mx.concatenate([x[:, : self.first], x[:, self.tokens - last :]], axis=1)
        self.middle = x[:, self.first : self.tokens - last]
        self.rows = rows.cut(self.first, last)
        self._blocks: dict[int, list[Block]] = {}
        self._x, self._energies = x, list[mx.array]()
        for first, end in spans(x.shape):
            self._energies.append(fused(_energy)(x[:, first:end]))
            start([self._energies[-1], self.kept])

    @cached_property
    def signal(self) -> float:
        """Sum of all squares; infinite where some values are."""
        if self.in_float32:
            return self._energy
        blocks = (self._x[:, first:end] for first, end in spans(self._x.shape))
        return sum(float(np.square(in_float64(x)).sum()) for x in blocks)

    @cached_property
    def in_float32(self) -> bool:
        """Return whether float32 holds the squares, which of bfloat16 may be inf or 0."""
        return float32_holds(self._energy, self._x.size)

    @cached_property
    def _energy(self) -> float:
        return summed(self._energies)

    def check(self) -> None:
        """Raise InputError if some values are not finite."""
        if math.isfinite(self.signal):
            return
        if self.from_float32 and self._x.dtype == mx.float16 and not mx.isnan(self._x).any():
            raise beyond_float16(self.name)
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
                for first, end in spans(self.middle.shape, together)
            ]
        return self._blocks[together]


def _energy(x: mx.array) -> mx.array:
    """Sums of squares over tokens, [H, D]."""
    return mx.square(x.astype(mx.float32)).sum(axis=1)
