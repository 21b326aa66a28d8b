"""Discretized Laplace and Gaussian tables that two bytes name.

A channel's table follows from its shape byte (kind and scale) and its location byte;
one edge byte a tensor adds mass to the first and last symbol, where minima and maxima
of groups fall. Integer arithmetic throughout: the same table on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]

N_SCALES = 48
LOCATIONS = 255
EDGES = (0, 1, 2, 4, 8)  # edge byte -> 1/128 of the mass on each edge
# 2^24 * 2^(-i/16)
_OCTAVE = np.array(
    [16777216, 16065895, 15384732, 14732450, 14107823, 13509679, 12936895, 12388396,
     11863153, 11360180, 10878531, 10417304, 9975633, 9552686, 9147672, 8759829],
    np.int64,
)  # fmt: skip
# scales in 1/256 of a symbol, four an octave from 1/8 symbol on
_SCALES = np.array([round(32 * 2 ** (i / 4)) for i in range(N_SCALES)], np.int64)
_LEAK = 19  # no symbol is rarer than 2^-19, well above what the coder rounds to
_LAST = 16 * 24 - 1
# 2^24 * 2^(-e/16), at least 1
_POWERS = np.maximum(_OCTAVE[np.arange(_LAST + 1) % 16] >> (np.arange(_LAST + 1) // 16), 1).astype(
    np.float64
)
_BITS = np.log2(_POWERS)
_BLOCK = 1 << 15  # counts that are fitted at a time


def tables(shape: Integers, location: Integers, edge: int, n_symbols: int) -> Integers:
    """Integer frequencies [n, K] of n shape bytes and location bytes."""
    distance = _distances(location, n_symbols)
    exponent = np.empty(distance.shape, np.intp)
    gaussian = shape >= N_SCALES
    exponent[gaussian] = _normal(distance[gaussian], shape[gaussian] - N_SCALES)
    exponent[~gaussian] = _laplace(distance[~gaussian], shape[~gaussian])
    return _frequencies(exponent, edge).astype(np.int64)


def fit(counts: Integers) -> tuple[Integers, Integers, int, float]:
    """(shape bytes [n], location bytes [n], edge, bits) for count rows [n, K].

    Scale and location come from the moments of the counts; the kind is the better of two.
    """
    n_symbols = counts.shape[1]
    step = max(1, _BLOCK // n_symbols)
    blocks = [slice(start, start + step) for start in range(0, len(counts), step)]
    location, laplace, normal = (
        np.concatenate(found) for found in zip(*(_moments(counts[b]) for b in blocks), strict=True)
    )
    kinds = (
        _Kind(_laplace, laplace, location, n_symbols),
        _Kind(_normal, normal, location, n_symbols),
    )
    n = counts.sum(axis=1)
    costs = [[kind.costs(counts[b], n[b], b) for kind in kinds] for b in blocks]
    edge = int(sum(np.minimum(*both).sum(axis=1) for both in costs).argmin())
    is_laplace = np.concatenate([one[edge] <= other[edge] for one, other in costs])
    table = np.where(is_laplace, kinds[0].index, len(kinds[0].exponent) + kinds[1].index)
    found = _frequencies(np.concatenate([kind.exponent for kind in kinds]), edge)
    totals, found = np.log2(found.sum(axis=1)), np.log2(found)
    bits = 0.0
    for b in blocks:
        per_row = n[b] * totals[table[b]]
        bits += float(per_row.sum() - (found[table[b]] * counts[b]).sum())
    return np.where(is_laplace, laplace, normal + N_SCALES), location, edge, bits


def _moments(counts: Integers) -> tuple[Integers, Integers, Integers]:
    """Location byte, Laplace scale and Gaussian scale of count rows [n, K]: [n] each."""
    weights = counts.astype(np.float64)
    symbols = np.arange(counts.shape[1], dtype=np.float64)
    total = np.maximum(weights.sum(axis=1), 1)
    mean = weights @ symbols / total
    location = np.rint(mean * LOCATIONS / max(len(symbols) - 1, 1)).astype(np.int64)
    away = np.abs(symbols[None] - mean[:, None])
    weights *= away
    laplace = _nearest_scale(weights.sum(axis=1) / total)
    weights *= away
    return location, laplace, _nearest_scale(np.sqrt(weights.sum(axis=1) / total))


class _Kind:
    """Tables of one kind for rows with some scales and locations, each table made once.

    Attributes:
        exponent: [tables, K] of 1/2 in 1/16.
        index: [n] the table of each row.
    """

    def __init__(
        self,
        exponents: Callable[[Floats, Integers], Integers],
        scale: Integers,
        location: Integers,
        n_symbols: int,
    ) -> None:
        names, self.index = np.unique(scale * (LOCATIONS + 1) + location, return_inverse=True)
        scale, location = np.divmod(names, LOCATIONS + 1)
        self.exponent = exponents(_distances(location, n_symbols), scale)
        powers = _POWERS.take(self.exponent)
        self._bits = _BITS.take(self.exponent)
        total = powers.sum(axis=1)
        # mass on the edges -> bits of the total, and of the first symbol and the last
        self._edges = []
        for mass in EDGES:
            extra = np.floor(total * mass / 128)
            ends = [np.log2(powers[:, end] + extra) for end in (0, -1)[:n_symbols]]
            self._edges.append((np.log2(total + 2 * extra), ends))

    def costs(self, counts: Integers, n: Integers, rows: slice) -> Floats:
        """Bits [edges, r] of some of the rows, of n [r] symbols each, with each edge mass."""
        table = self.index[rows]
        inner = self._bits[table]
        inner *= counts
        bits = inner[:, 1:-1].sum(axis=1)
        return np.array([
            n * total[table]
            - bits
            - sum(counts[:, -end] * bits_of[table] for end, bits_of in enumerate(ends))
            for total, ends in self._edges
        ])  # fmt: skip


def _distances(location: Integers, n_symbols: int) -> Floats:
    """Distance [n, K] of each symbol from each location, in 1/256 symbol: a whole number."""
    centre = location[:, None].astype(np.int64) * ((n_symbols - 1) * 256) // LOCATIONS
    return np.abs(np.arange(n_symbols, dtype=np.float64)[None] * 256 - centre)


# Quotients of whole numbers below 2^53 in float64: as exact as integer division, since those
# up to _LAST are nearer to a whole number than rounding moves them only if they are one.
def _laplace(distance: Floats, scale: Integers) -> Integers:
    """Exponents of 1/2 in 1/16: |x| / ln 2 in units of the scale."""
    return _exponents(distance * 23083, _SCALES[scale] * 1000)


def _normal(distance: Floats, scale: Integers) -> Integers:
    """Exponents of 1/2 in 1/16: x^2 / (2 ln 2) in units of the scale."""
    return _exponents(distance * distance * 11542, _SCALES[scale] ** 2 * 1000)


def _exponents(numerator: Floats, denominator: Integers) -> Integers:
    numerator /= denominator[:, None]
    return np.minimum(numerator, _LAST, out=numerator).astype(np.intp)


def _frequencies(exponent: Integers, edge: int) -> Floats:
    """Frequencies [n, K], whole numbers, with what leaks to rare symbols and to the edges."""
    found = _POWERS.take(exponent)
    total = found.sum(axis=1)
    found += np.floor(total / (1 << _LEAK))[:, None]
    extra = np.floor(total * EDGES[edge] / 128)
    found[:, 0] += extra
    found[:, -1] += extra
    return found


def _nearest_scale(width: Floats) -> Integers:
    index = np.rint(4 * np.log2(np.maximum(width, 1e-6) * 8))
    return np.clip(index, 0, N_SCALES - 1).astype(np.int64)
