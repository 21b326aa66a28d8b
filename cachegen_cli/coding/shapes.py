"""Discretized Laplace and Gaussian tables that two bytes name.

A channel's table follows from its shape byte (kind and scale) and its location byte;
one edge byte a tensor adds mass to the first and last symbol, where minima and maxima
of groups fall. Integer arithmetic throughout: the same table on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.ranges import code_length

Integers = npt.NDArray[np.integer[Any]]

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
_POWERS = np.maximum(_OCTAVE[np.arange(_LAST + 1) % 16] >> (np.arange(_LAST + 1) // 16), 1)
_BITS = np.log2(_POWERS)


def tables(shape: Integers, location: Integers, edge: int, n_symbols: int) -> Integers:
    """Integer frequencies [n, K] of n shape bytes and location bytes."""
    distance = _distances(location, n_symbols)
    gaussian = shape >= N_SCALES
    exponent = np.empty_like(distance)
    exponent[gaussian] = _normal(distance[gaussian], shape[gaussian] - N_SCALES)
    exponent[~gaussian] = _laplace(distance[~gaussian], shape[~gaussian])
    found = _POWERS[exponent]
    total = found.sum(axis=1)
    found += (total >> _LEAK)[:, None]
    extra = total * EDGES[edge] // 128
    found[:, 0] += extra
    found[:, -1] += extra
    return found


def fit(counts: Integers) -> tuple[Integers, Integers, int, float]:
    """(shape bytes [n], location bytes [n], edge, bits) for count rows [n, K].

    Scale and location come from the moments of the counts; the kind is the better of two.
    """
    n_symbols = counts.shape[1]
    symbols = np.arange(n_symbols)
    total = np.maximum(counts.sum(axis=1), 1)
    mean = counts @ symbols / total
    away = np.abs(symbols[None] - mean[:, None])
    location = np.rint(mean * LOCATIONS / max(n_symbols - 1, 1)).astype(np.int64)
    spread = (counts * away).sum(axis=1) / total
    deviation = np.sqrt((counts * away**2).sum(axis=1) / total)
    distance = _distances(location, n_symbols)
    laplace, normal = _nearest_scale(spread), _nearest_scale(deviation)
    costs = [
        _edge_costs(counts, _laplace(distance, laplace)),
        _edge_costs(counts, _normal(distance, normal)),
    ]
    edge = int(np.minimum(*costs).sum(axis=1).argmin())
    shape = np.where(costs[0][edge] <= costs[1][edge], laplace, normal + N_SCALES)
    bits = code_length(counts, tables(shape, location, edge, n_symbols))
    return shape, location, edge, bits


def _distances(location: Integers, n_symbols: int) -> Integers:
    """Distance [n, K] of each symbol from each location, in 1/256 symbol."""
    centre = location[:, None].astype(np.int64) * ((n_symbols - 1) * 256) // LOCATIONS
    return np.abs(np.arange(n_symbols)[None] * 256 - centre)


def _laplace(distance: Integers, scale: Integers) -> Integers:
    """Exponents of 1/2 in 1/16: |x| / ln 2 in units of the scale."""
    return np.minimum(distance * 23083 // (_SCALES[scale] * 1000)[:, None], _LAST)


def _normal(distance: Integers, scale: Integers) -> Integers:
    """Exponents of 1/2 in 1/16: x^2 / (2 ln 2) in units of the scale."""
    return np.minimum(distance * distance * 11542 // (_SCALES[scale] ** 2 * 1000)[:, None], _LAST)


def _edge_costs(counts: Integers, exponent: Integers) -> npt.NDArray[np.float64]:
    """Bits [edges, n] of count rows under tables with each edge mass."""
    found = _POWERS[exponent]
    inner = (counts[:, 1:-1] * _BITS[exponent[:, 1:-1]]).sum(axis=1)
    total = found.sum(axis=1)
    costs = []
    for mass in EDGES:
        extra = total * mass // 128
        ends = sum(counts[:, end] * np.log2(found[:, end] + extra) for end in _ends(counts))
        costs.append(counts.sum(axis=1) * np.log2(total + 2 * extra) - inner - ends)
    return np.array(costs)


def _ends(counts: Integers) -> tuple[int, ...]:
    return (0, -1) if counts.shape[1] > 1 else (0,)


def _nearest_scale(width: npt.NDArray[np.float64]) -> Integers:
    index = np.rint(4 * np.log2(np.maximum(width, 1e-6) * 8))
    return np.clip(index, 0, N_SCALES - 1).astype(np.int64)
