"""What the symbol models need to know of a tensor: counts by channel and counts of pairs.

Symbols are codes, or token deltas shifted to start at 0. For the context model a channel
is cut into segments that are coded side by side, so that a decoder has thousands of
independent symbols at each step; a segment's first symbol has no context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.blocks import block_length
from cachegen_cli.coding.counts import Counts, Pairs, segment_starts

Integers = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Statistics:
    """Counts of one way, codes or deltas, to see a tensor [C, T].

    Attributes:
        delta: whether the symbols are token deltas.
        low: the smallest symbol that occurs; symbols are counted from it.
        channel: [C, K] counts by channel.
        pooled: [K] counts in all channels.
        first: [K] counts of the segments' first symbols.
        pairs: [K, K] counts of (previous, current) within segments, or None where there are
            more pairs than symbols, so that a table of them cannot pay.
        ideal_bytes: payload of the best table for each channel, before any table is paid for.
    """

    delta: bool
    low: int
    channel: Integers
    pooled: Integers
    first: Integers
    pairs: Pairs | None
    ideal_bytes: float

    @property
    def n_symbols(self) -> int:
        """Symbols from the smallest to the largest that occurs, at least 2."""
        return self.channel.shape[1]

    @property
    def n(self) -> int:
        """Symbols in all channels."""
        return int(self.pooled.sum())

    @property
    def blocks(self) -> int:
        """Blocks of symbols in all channels, and symbols behind each channel's last block."""
        k = block_length(self.n_symbols)
        tokens = self.n // len(self.channel)
        return len(self.channel) * (tokens // k + tokens % k)


def statistics(counts: Counts) -> tuple[Statistics, Statistics]:
    """Statistics of a tensor's codes and of their token deltas."""
    found = counts.histograms
    return (
        _trimmed(
            counts, found.raw, found.raw_pooled, found.raw_bits, counts.raw_pairs, delta=False
        ),
        _trimmed(
            counts,
            found.delta,
            found.delta_pooled,
            found.delta_bits,
            counts.delta_pairs,
            delta=True,
        ),
    )


def symbols_of(codes: npt.NDArray[np.uint8], delta: bool) -> npt.NDArray[np.int16]:
    """Codes, or their token deltas (row 0 as it is), as int16."""
    wide = codes.astype(np.int16)
    if delta:
        wide[:, 1:] -= codes[:, :-1]
    return wide


def _trimmed(
    counts: Counts,
    by_channel: Integers,
    by_head: Integers,
    bits: npt.NDArray[np.float64],
    pairs: Pairs | None,
    *,
    delta: bool,
) -> Statistics:
    channel = by_channel.reshape(counts.channels, -1)
    pooled = by_head.sum(axis=0)
    used = np.flatnonzero(pooled)
    low, high = (int(used[0]), int(used[-1])) if used.size else (0, 0)
    if low == high:  # the coder wants two symbols, of which one may never occur
        low, high = (low, high + 1) if high + 1 < channel.shape[1] else (low - 1, high)
    n = high - low + 1
    shift = (channel.shape[1] // 2 if delta else 0) - low
    starts = segment_starts(counts.channels, counts.tokens, n)
    firsts = counts.symbols_at(starts, delta) + shift
    within = None
    if pairs is not None and n * n <= counts.channels * counts.tokens:
        before = counts.symbols_at(starts[1:] - 1, delta) + shift
        within = pairs[low : high + 1, low : high + 1].copy()
        np.subtract.at(within, (before, firsts[:, 1:]), 1)
    return Statistics(
        delta,
        -shift,
        channel[:, low : high + 1],
        pooled[low : high + 1],
        np.bincount(firsts.ravel(), minlength=n),
        within,
        float(bits.sum() / 8),
    )
