"""What the symbol models need to know of a tensor: counts by channel and counts of pairs.

Symbols are codes, or token deltas shifted to start at 0. For the context model a channel
is cut into segments that are coded side by side, so that a decoder has thousands of
independent symbols at each step; a segment's first symbol has no context.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.blocks import block_length
from cachegen_cli.entropy import Histograms, channel_histograms, information

Counts = npt.NDArray[np.integer[Any]]

MIN_LANES = 4096
MIN_SEGMENT = 32  # tokens at least; a segment's first symbol is coded without context
_BLOCK_SYMBOLS = 1 << 19  # neighbours counted at a time


@dataclass(frozen=True)
class Statistics:
    """Counts of one way, codes or deltas, to see a tensor [C, T].

    Attributes:
        delta: whether the symbols are token deltas.
        low: the smallest symbol that occurs; symbols are counted from it.
        channel: [C, K] counts by channel.
        first: [K] counts of the segments' first symbols.
        pairs: [K, K] counts of (previous, current) within segments, or None where there are
            more pairs than symbols, so that a table of them cannot pay.
    """

    delta: bool
    low: int
    channel: Counts
    first: Counts
    pairs: Counts | None

    @cached_property
    def ideal_bytes(self) -> float:
        """Payload of the best table for each channel, before any table is paid for."""
        totals = self.channel.sum(axis=1, dtype=np.int64)
        return float(information(self.channel, totals).sum() / 8)

    @property
    def n_symbols(self) -> int:
        """Symbols from the smallest to the largest that occurs, at least 2."""
        return self.channel.shape[1]


def segment_blocks(channels: int, tokens: int, n_symbols: int) -> int:
    """Blocks a segment, so that there are about `MIN_LANES` segments in all channels."""
    k = block_length(n_symbols)
    segments = max(1, -(-MIN_LANES // channels))
    return max(-(-MIN_SEGMENT // k), -(-(tokens // k) // segments))


def statistics(
    codes: npt.NDArray[np.uint8], bits: int, counted: Histograms | None = None
) -> tuple[Statistics, Statistics]:
    """Statistics of codes [C, T] below 2^bits and of their token deltas.

    ``counted`` are the histograms of these channels, if they have been counted already.
    """
    found = counted or channel_histograms(codes[None], bits)
    raw, delta = (x.reshape(-1, x.shape[-1]) for x in (found.raw, found.delta))
    return (
        _trimmed(codes, raw, delta=False, offset=0),
        _trimmed(symbols_of(codes, True), delta, delta=True, offset=(1 << bits) - 1),
    )


def symbols_of(codes: npt.NDArray[np.uint8], delta: bool) -> npt.NDArray[np.int16]:
    """Codes, or their token deltas (row 0 as it is), as int16."""
    wide = codes.astype(np.int16)
    if delta:
        wide[:, 1:] -= codes[:, :-1]
    return wide


def _trimmed(
    symbols: npt.NDArray[np.integer[Any]], channel: Counts, *, delta: bool, offset: int
) -> Statistics:
    used = np.flatnonzero(channel.any(axis=0))
    low, high = (int(used[0]), int(used[-1])) if used.size else (0, 0)
    if low == high:  # the coder wants two symbols, of which one may never occur
        low, high = (low, high + 1) if high + 1 < channel.shape[1] else (low - 1, high)
    n = high - low + 1
    channels, tokens = symbols.shape
    k = block_length(n)
    # where segments start; leftovers behind the last block go on with their context
    starts = np.arange(0, max(tokens // k * k, 1), k * segment_blocks(channels, tokens, n))
    shift = offset - low
    first = np.bincount(symbols[:, starts].ravel().astype(np.int32) + shift, minlength=n)
    pairs = _pairs(symbols, n, shift, starts[1:]) if n * n <= symbols.size else None
    return Statistics(delta, low - offset, channel[:, low : high + 1], first, pairs)


def _pairs(
    symbols: npt.NDArray[np.integer[Any]], n: int, shift: int, starts: npt.NDArray[np.integer[Any]]
) -> Counts:
    """[n, n] counts of neighbours in a channel, less those across the starts of segments."""
    found = np.zeros(n * n, np.intp)
    block = max(1, _BLOCK_SYMBOLS // symbols.shape[1])
    for start in range(0, len(symbols), block):
        shifted = symbols[start : start + block].astype(np.intp) + shift
        for previous, current, sign in (
            (shifted[:, :-1], shifted[:, 1:], 1),
            (shifted[:, starts - 1], shifted[:, starts], -1),
        ):
            found += sign * np.bincount((previous * n + current).ravel(), minlength=n * n)
    return found.reshape(n, n)
