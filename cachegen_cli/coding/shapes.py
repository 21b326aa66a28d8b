"""Discretized Laplace and Gaussian tables that two bytes name.

A channel's table follows from its shape byte (kind and scale) and its location byte;
one edge byte a tensor adds mass to the first and last symbol, where minima and maxima
of groups fall. Integer arithmetic throughout: the same table on every machine.
"""

from __future__ import annotations

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
    step = max(1, _BLOCK // counts.shape[1])
    blocks = [_Block(counts[start : start + step]) for start in range(0, len(counts), step)]
    edge = int(sum(np.minimum(*block.costs).sum(axis=1) for block in blocks).argmin())
    bits = sum(block.decide(edge) for block in blocks)
    shape, location = (
        np.concatenate([getattr(block, name) for block in blocks]) for name in ("shape", "location")
    )
    return shape, location, edge, bits


class _Block:
    """Some rows of counts, few enough for a CPU's caches.

    Attributes:
        location: bytes [n].
        costs: bits [edges, n] of the best Laplace table and the best Gaussian.
        shape: bytes [n], once `decide` has run.
    """

    def __init__(self, counts: Integers) -> None:
        self.counts = counts.astype(np.float64)
        n_symbols = counts.shape[1]
        symbols = np.arange(n_symbols, dtype=np.float64)
        self.totals = self.counts.sum(axis=1)
        total = np.maximum(self.totals, 1)
        mean = self.counts @ symbols / total
        away = np.abs(symbols[None] - mean[:, None])
        self.location = np.rint(mean * LOCATIONS / max(n_symbols - 1, 1)).astype(np.int64)
        weighted = self.counts * away
        self._laplace = _nearest_scale(weighted.sum(axis=1) / total)
        weighted *= away
        self._normal = _nearest_scale(np.sqrt(weighted.sum(axis=1) / total))
        distance = _distances(self.location, n_symbols)
        self._exponents = _laplace(distance, self._laplace), _normal(distance, self._normal)
        self.costs = [self._edge_costs(exponent) for exponent in self._exponents]

    def decide(self, edge: int) -> float:
        """Take the better kind of each row; their bits with that edge."""
        laplace = self.costs[0][edge] <= self.costs[1][edge]
        self.shape = np.where(laplace, self._laplace, self._normal + N_SCALES)
        exponent = np.where(laplace[:, None], *self._exponents)
        found = _frequencies(exponent, edge)
        per_row = self.totals * np.log2(found.sum(axis=1))
        np.log2(found, out=found)
        found *= self.counts
        return float(per_row.sum() - found.sum())

    def _edge_costs(self, exponent: Integers) -> npt.NDArray[np.float64]:
        """Bits [edges, n] of the rows under tables with each edge mass."""
        total = _POWERS.take(exponent).sum(axis=1)
        inner = _BITS.take(exponent)
        inner *= self.counts
        bits = inner[:, 1:-1].sum(axis=1)
        ends = (0, -1) if exponent.shape[1] > 1 else (0,)
        costs = []
        for mass in EDGES:
            extra = np.floor(total * mass / 128)
            outer = sum(
                self.counts[:, end] * np.log2(_POWERS[exponent[:, end]] + extra) for end in ends
            )
            costs.append(self.totals * np.log2(total + 2 * extra) - bits - outer)
        return np.array(costs)


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
