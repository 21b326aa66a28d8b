"""Counts of codes on a GPU; only the counts come to the host, in one read.

CUDA has a kernel for it (`counts.cu`). Elsewhere scatter-adds count: up to four bits a
channel's pairs of neighbours first, of which codes and deltas are sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from cachegen_cli.coding.counts import NARROW_BITS, Counts, edge_places, host_counts
from cachegen_cli.device import mx, on_cuda, start
from cachegen_cli.entropy import Histograms

Counter = Callable[[mx.array, int, mx.array, int], mx.array]

_BLOCKS, _THREADS = 264, 512  # of the kernel: two blocks a processor of a large GPU
_LANES = 64  # few bins that many hit stall a GPU on its atomics
_SCATTERED = 1 << 19  # symbols at once, since their indices take ten times the memory of codes


class DeviceCounts:
    """As `host_counts`, on MLX's device: begun when it is made, done when it is read."""

    def __init__(self, codes: mx.array, bits: int) -> None:
        heads, dim, tokens = self._shape = codes.shape
        self._bits, n = bits, 1 << bits
        self._counts: mx.array | None = None
        if not codes.size:
            return
        channels = codes.reshape(heads * dim, tokens)
        places = _places(heads * dim, tokens)
        self._shapes = [
            (heads, dim, n), (heads, dim, 2 * n - 1), (n, n), (2 * n - 1, 2 * n - 1),
            (heads * dim, places.size),
        ]  # fmt: skip
        count = _kernel(n) or _by_scattering
        self._counts = count(channels, n, places, sum(map(math.prod, self._shapes)))
        mx.async_eval(self._counts)  # type: ignore[no-untyped-call]

    def read(self) -> Counts:
        """Take the counts to the host."""
        if self._counts is None:
            return host_counts(np.zeros(self._shape, np.uint8), self._bits)
        ends = np.cumsum([math.prod(shape) for shape in self._shapes])[:-1]
        raw, delta, raw_pairs, delta_pairs, edges = (
            part.reshape(shape)
            for part, shape in zip(
                np.split(np.array(self._counts), ends), self._shapes, strict=True
            )
        )
        return Counts(
            Histograms(raw, delta, self._bits),
            raw_pairs,
            delta_pairs,
            edges.astype(np.uint8),
            self._shape[2],
        )


@lru_cache(maxsize=16)
def _places(channels: int, tokens: int) -> mx.array:
    places = mx.array(edge_places(channels, tokens).astype(np.int32))
    mx.eval(places)
    return places


@cache
def _kernel(n: int) -> Counter | None:
    """The CUDA kernel for codes below n; None where there is no CUDA or it cannot be compiled."""
    if not on_cuda():
        return None
    source = files("cachegen_cli.coding").joinpath("counts.cu").read_text("utf-8")

    def count(codes: mx.array, n: int, places: mx.array, size: int) -> mx.array:
        [counts] = kernel(
            inputs=[codes, places],
            template=[("N", n)],
            grid=(min(len(codes), _BLOCKS) * _THREADS, 1, 1),
            threadgroup=(_THREADS, 1, 1),
            output_shapes=[(size,)],
            output_dtypes=[mx.int32],
            init_value=0,
        )
        return counts

    try:
        kernel: Any = mx.fast.cuda_kernel(
            "cachegen_counts", ["codes", "places"], ["counts"], source
        )
        mx.eval(count(mx.zeros((1, 1), mx.uint8), n, mx.zeros(1, mx.int32), 5 * n * n))
    except RuntimeError:
        return None
    return count


def _by_scattering(codes: mx.array, n: int, places: mx.array, size: int) -> mx.array:
    """Counts of codes [C, T] below n in an array of that size, one kind behind the other."""
    count = _narrow if n <= 1 << NARROW_BITS else _wide
    rows = max(1, _SCATTERED // codes.shape[1])
    by_channel, deltas = list[mx.array](), list[mx.array]()
    pairs, delta_pairs = mx.zeros(n * n, mx.int32), mx.zeros((2 * n - 1) ** 2, mx.int32)
    for top in range(0, len(codes), rows):
        # values that are not finite have any code, and are refused only later
        part = mx.minimum(codes[top : top + rows], n - 1)
        raw, delta, more, more_deltas = count(part, n)
        first, channel = part[:, 0].astype(mx.int32), mx.arange(len(part))
        by_channel.append(raw.at[channel, first].add(1))
        deltas.append(delta.at[channel, first + (n - 1)].add(1))
        pairs, delta_pairs = pairs + more, delta_pairs + more_deltas
        if part.shape[1] > 1:
            at = (first + (n - 1)) * (2 * n - 1) + (part[:, 1] - first + (n - 1))
            delta_pairs = delta_pairs.at[at].add(1)
        start([by_channel[-1], deltas[-1], pairs, delta_pairs])
    edges = codes[:, places].astype(mx.int32)
    found = [*by_channel, *deltas, pairs, delta_pairs, edges]
    return mx.concatenate([array.reshape(-1) for array in found])


def _narrow(codes: mx.array, n: int) -> tuple[mx.array, ...]:
    """Counts of codes [C, T] and differences by channel, and of pairs of either, but for what
    a channel's first token takes part in.
    """
    channels = mx.arange(len(codes), dtype=mx.int32)[:, None]
    index = (codes[:, :-1] * n + codes[:, 1:]) + channels * (n * n)  # below 2^8, then 32 bits
    by_channel = _scattered(index, len(codes) * n * n).reshape(-1, n, n)
    # row p of the previous symbol moves p places to the left of the row before it
    skewed = mx.pad(by_channel[:, ::-1], [(0, 0), (0, 0), (0, n)]).reshape(len(codes), -1)
    delta = skewed[:, : n * (2 * n - 1)].reshape(-1, n, 2 * n - 1).sum(axis=1)
    pairs = by_channel.sum(axis=0).reshape(-1)
    return by_channel.sum(axis=1), delta, pairs, _delta_pairs(codes, n, _LANES)


def _wide(codes: mx.array, n: int) -> tuple[mx.array, ...]:
    """As `_narrow`, where there are too many pairs to count them by channel."""
    channels = mx.arange(len(codes), dtype=mx.int32)[:, None]
    differences = _differences(codes)
    raw = _scattered(channels * n + codes[:, 1:], len(codes) * n)
    delta = _scattered(differences + (channels * (2 * n - 1) + (n - 1)), len(codes) * (2 * n - 1))
    pairs = _scattered(codes[:, :-1].astype(mx.int32) * n + codes[:, 1:], n * n)
    shapes = raw.reshape(-1, n), delta.reshape(-1, 2 * n - 1)
    return *shapes, pairs, _delta_pairs(codes, n, 1)


def _delta_pairs(codes: mx.array, n: int, lanes: int) -> mx.array:
    """Counts of neighbouring differences of codes [C, T], each channel in one of some lanes."""
    size = 2 * n - 1
    lane = (mx.arange(len(codes), dtype=mx.int32) % lanes)[:, None]
    differences = _differences(codes)
    offset = lane * (size * size) + (n - 1) * (size + 1)
    if n <= 1 << NARROW_BITS:
        index = (differences[:, :-1] * size + differences[:, 1:]) + offset  # 16 bits, then 32
    else:
        index = differences[:, :-1].astype(mx.int32) * size + differences[:, 1:] + offset
    return _scattered(index, lanes * size * size).reshape(lanes, -1).sum(axis=0)


def _differences(codes: mx.array) -> mx.array:
    """Of neighbours in each channel, in 16 bits."""
    wide = codes.astype(mx.int16)
    return wide[:, 1:] - wide[:, :-1]


def _scattered(index: mx.array, size: int) -> mx.array:
    return mx.zeros(size, mx.int32).at[index.reshape(-1)].add(1)
