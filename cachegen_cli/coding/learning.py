"""What coder and decoder learn alike while they pass through a tensor's codes.

For each channel how large its codes are, for each kind of repeated token how well its
earlier rows predict it, and for each class of expected magnitude how often each symbol
occurred. Integers throughout: the same on every machine.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.repeats import AVERAGED, N_BUCKETS, Repeats

Integers = npt.NDArray[np.int64]

LARGEST = 24  # magnitude with a symbol of its own; beyond, the excess follows in binary
_SYMBOLS = 2 * LARGEST + 1
_ONE = 12  # bits behind the point of scales
_LOWEST = -6  # log2 of the smallest scale
_OCTAVES = 34
_FINE, _CLASS = 12, 4  # steps an octave; steps a class
CLASSES = _OCTAVES * _FINE // _CLASS
# 2^24 * 2^(i/12)
_ROOTS = np.array(
    [16777216, 17774841, 18831788, 19951584, 21137968, 22394899, 23726566, 25137418,
     26632164, 28215802, 29893608, 31671181],
    np.int64,
)  # fmt: skip
_EDGES = np.array(
    [(int(_ROOTS[i % _FINE]) << i // _FINE) >> (24 - _ONE - _LOWEST)
     for i in range(_OCTAVES * _FINE)],
    np.int64,
)  # fmt: skip
_UNITY = -_LOWEST * _FINE  # step of the scale 1
SHIFTS = np.maximum(_LOWEST + np.arange(CLASSES) * _CLASS // _FINE - 2, 0)
_COUNT, _PRIOR, _LIMIT = 32, 24 * 32, 1 << 19  # of a table: an occurrence, the start, the most
_MEMORY = 128  # tokens that a channel's scale remembers
_KNOWN = 64  # tokens that a scale counts for that was known before
_LITTLE = (3 << _ONE) // 20  # scales below count as this in ratios
_RATIO = 8  # bits behind the point of ratios; none counts as more than 8
_MOST = 8 << _RATIO
_TWELVE = 12  # is divided by 1 to AVERAGED
_RHO_PRIOR = 16 * _TWELVE * _TWELVE
_CLIPPED = 1 << 20  # codes count as no more in predictions


class State:
    """What coder and decoder know alike."""

    def __init__(self, rows: npt.NDArray[Any], scales: Integers | None = None) -> None:
        """Start with rows [T, C] of codes, of which only those of blocks before are looked at:
        a decoder's are filled in block by block.
        """
        self.rows, channels = rows, rows.shape[1]
        self.scale, self.seen = np.full(channels, 1 << _ONE >> 1, np.int64), 2
        if scales is not None:
            self.scale, self.seen = scales.copy(), _KNOWN
        self.tables = _start().copy()
        self.totals = self.tables.sum(axis=1)
        self.offset = np.full((2, N_BUCKETS), 64 << _RATIO, np.int64)
        self.products = np.zeros((2, N_BUCKETS, channels), np.int64)
        self.used: list[tuple[Integers, Integers]] = []

    def begin(self, start: int, end: int, found: Repeats) -> Integers:
        """Predictions [block, C] of a block's codes."""
        self.bucket = found.bucket[start:end]
        self.earlier = np.zeros((end - start, self.rows.shape[1]), np.int64)  # 12 x their mean
        known = np.flatnonzero(self.bucket)
        if known.size:
            places = found.earlier[:, start:end][:, known]
            sums = np.zeros((known.size, self.rows.shape[1]), np.int64)
            for n in range(AVERAGED):
                there = places[n] >= 0
                sums[there] += self.rows[places[n][there]]
            weight = _TWELVE // (places >= 0).sum(axis=0)
            self.earlier[known] = np.clip(sums * weight[:, None], -_CLIPPED, _CLIPPED)
        above, below = self.products
        pooled = _TWELVE * above.sum(axis=1) * 256 // (below.sum(axis=1) + 1)
        rho = (_TWELVE * 256 * above + _RHO_PRIOR * np.clip(pooled, 0, 256)[:, None]) // (
            below + _RHO_PRIOR
        )
        rho = np.clip(rho, 0, 256)[self.bucket]
        half = 128 * _TWELVE
        predicted = (rho * self.earlier + half) // (256 * _TWELVE)
        self.scales = self.scale[None] * self.offset[0][:, None] // self.offset[1][:, None]
        self.fine = np.searchsorted(_EDGES, self.scales, side="right") - 1
        self.token = np.full((2, end - start), 2 << _RATIO, np.int64)
        self.used = []
        return np.where((self.bucket > 0)[:, None], predicted, 0)

    def classes(self, part: slice) -> Integers:
        """[block, channels of the part] classes of magnitude."""
        ratio = (self.token[0] << _ONE) // self.token[1]
        louder = np.searchsorted(_EDGES, ratio, side="right") - 1 - _UNITY
        fine = self.fine[:, part][self.bucket] + (louder * 4 // 5)[:, None]
        return np.clip(fine, 0, CLASSES * _CLASS - 1) // _CLASS

    def activity(self, part: slice, residuals: Integers) -> None:
        """Take in how large a part's residuals are beside their scales."""
        scales = self.scales[:, part][self.bucket]
        self.token[0] += _ratio(np.abs(residuals) << _ONE, scales).sum(axis=1)
        self.token[1] += _ratio(scales, scales).sum(axis=1)

    def end(self, start: int, end: int, residuals: Integers, predicted: Integers) -> None:
        """Learn from a block."""
        self.rows[start:end] = residuals + predicted
        for classes, symbols in self.used:
            np.add.at(self.tables, (classes, symbols), _COUNT)
        self.totals = self.tables.sum(axis=1)
        while (full := self.totals > _LIMIT).any():
            self.tables[full] = (self.tables[full] + 1) >> 1
            self.totals = self.tables.sum(axis=1)
        size = np.abs(residuals) << _ONE
        above, below = self.offset[0][self.bucket][:, None], self.offset[1][self.bucket][:, None]
        n = end - start
        self.seen = min(self.seen + n, max(_MEMORY, n))
        usual = (size * below // above).sum(axis=0)
        self.scale = np.maximum(self.scale + (usual - n * self.scale) // self.seen, 1)
        ratios = _ratio(size, self.scale[None]).sum(axis=1) * 32 // size.shape[1]
        expected = int(_ratio(self.scale, self.scale).sum()) * 32 // size.shape[1]
        np.add.at(self.offset[0], self.bucket, ratios)
        np.add.at(self.offset[1], self.bucket, expected)
        known = np.flatnonzero(self.bucket)
        now = np.clip(self.rows[start:end][known].astype(np.int64), -_CLIPPED, _CLIPPED)
        np.add.at(self.products[0], self.bucket[known], now * self.earlier[known])
        np.add.at(self.products[1], self.bucket[known], self.earlier[known] ** 2)


def scales_of(magnitudes: npt.NDArray[np.floating[Any]]) -> Integers:
    """Scales [C] to start from where channels' mean magnitudes are known."""
    return np.clip(magnitudes * (1 << _ONE), 1, 1 << 40).astype(np.int64)


def _ratio(size: Integers, scale: Integers) -> Integers:
    """size / scale behind the point of `_RATIO`, with little scales and great ratios cut."""
    return np.minimum((size << _RATIO) // np.maximum(scale, _LITTLE), _MOST)


@cache
def _start() -> Integers:
    """Tables [classes, symbols] before anything was coded: two-sided geometric ones.

    With b the mean magnitude, the ratio of neighbours is (sqrt(1 + b^2) - 1) / b. Products,
    quotients and roots of float64 are the same on every machine.
    """
    tables = np.empty((CLASSES, _SYMBOLS), np.int64)
    for name in range(CLASSES):
        middle = name * _CLASS + _CLASS // 2
        octave = _LOWEST + middle // _FINE - int(SHIFTS[name])
        mean = float(_ROOTS[middle % _FINE]) / (1 << 24) * 2.0**octave
        ratio = (np.sqrt(1 + mean * mean) - 1) / mean
        chances = [(1 - ratio) / (1 + ratio)]
        for _ in range(LARGEST):
            chances.append(chances[-1] * ratio)
        counts = [int(chance * _PRIOR) + 1 for chance in chances]
        tables[name] = [*counts[:0:-1], *counts]
    return tables
