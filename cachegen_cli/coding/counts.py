"""How often codes, token deltas and neighbours of them occur, counted by numpy.

Up to four bits a channel's pairs of neighbours are few enough to count first; codes and
deltas are then their sums.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.blocks import SIZES, block_length
from cachegen_cli.entropy import Histograms, channel_histograms, counts_by_channel

Pairs = npt.NDArray[np.integer[Any]]
Codes = npt.NDArray[np.uint8]

MIN_LANES = 4096
MIN_SEGMENT = 32  # tokens at least; a segment's first symbol is coded without context
NARROW_BITS = 4
_BLOCK_SYMBOLS = 1 << 16  # of one np.bincount: what a CPU's caches hold
_TOKENS_A_PAIR = 2  # from which on adding up a channel's pairs costs less than counting twice
_LANES = 4  # few bins that many hit stall a CPU on its own stores


class Counts(NamedTuple):
    """Counts of codes [H, D, T] below 2^bits.

    Attributes:
        histograms: of codes and of token deltas by channel.
        raw_pairs: [2^bits, 2^bits] counts of (previous, current) codes in all channels.
        delta_pairs: [2^(bits+1) - 1] * 2 counts of token deltas likewise, from the lowest on.
            Either is None where there are more pairs than symbols.
        edges: [H * D, P] the codes at `edge_places`.
        tokens: T.
    """

    histograms: Histograms
    raw_pairs: Pairs | None
    delta_pairs: Pairs | None
    edges: Codes
    tokens: int

    @property
    def channels(self) -> int:
        """H * D."""
        return len(self.edges)

    def symbols_at(self, places: npt.NDArray[np.int64], delta: bool) -> npt.NDArray[np.int64]:
        """Codes, or token deltas, at starts of segments or just before: [H * D, places]."""
        known = edge_places(self.channels, self.tokens)
        found = self.edges[:, np.searchsorted(known, places)].astype(np.int64)
        if delta:
            before = self.edges[:, np.searchsorted(known, np.maximum(places - 1, 0))]
            found -= np.where(places > 0, before, 0)
        return found


def segment_blocks(channels: int, tokens: int, n_symbols: int) -> int:
    """Blocks a segment, so that there are about `MIN_LANES` segments in all channels."""
    k = block_length(n_symbols)
    segments = max(1, -(-MIN_LANES // channels))
    return max(-(-MIN_SEGMENT // k), -(-(tokens // k) // segments))


@lru_cache(maxsize=64)
def segment_starts(channels: int, tokens: int, n_symbols: int) -> npt.NDArray[np.int64]:
    """Where segments start; leftovers behind the last block go on with their context."""
    k = block_length(n_symbols)
    step = k * segment_blocks(channels, tokens, n_symbols)
    return np.arange(0, max(tokens // k * k, 1), step)


@lru_cache(maxsize=16)
def edge_places(channels: int, tokens: int) -> npt.NDArray[np.int64]:
    """Where segments may start, whatever the alphabet turns out to be, and two tokens before."""
    starts = np.concatenate([segment_starts(channels, tokens, n) for n in SIZES])
    places = np.unique(np.concatenate([[0, 1], starts, starts - 1, starts - 2]))
    return places[(places >= 0) & (places < tokens)]


def host_counts(codes: Codes, bits: int) -> Counts:
    """Count codes [H, D, T] below 2^bits in memory."""
    heads, dim, tokens = codes.shape
    channels = codes.reshape(heads * dim, tokens)
    if not codes.size:
        return Counts(channel_histograms(codes, bits), None, None, channels[:, :0], tokens)
    edges = channels[:, edge_places(len(channels), tokens)]
    if bits > NARROW_BITS or tokens < _TOKENS_A_PAIR << 2 * bits:
        found = channel_histograms(codes, bits)
        return Counts(found, *_paying_pairs(channels, found), edges, tokens)
    by_channel = _pairs_by_channel(channels, bits)
    low = 1 - (1 << bits)
    delta_pairs = _pairs(channels, low, 1 - 2 * low, delta=True)
    raw, delta = by_channel.sum(axis=1), _diagonals(by_channel)
    return _completed(codes.shape, bits, raw, delta, by_channel.sum(axis=0), delta_pairs, edges)


def _completed(
    shape: tuple[int, ...],
    bits: int,
    raw: npt.NDArray[np.integer],
    delta: npt.NDArray[np.integer],
    raw_pairs: Pairs,
    delta_pairs: Pairs,
    edges: Codes,
) -> Counts:
    """Add each channel's first symbol, which no neighbour comes before."""
    heads, dim, tokens = shape
    rows, first = np.arange(len(edges)), edges[:, 0].astype(np.int64)
    raw[rows, first] += 1
    delta[rows, first + (1 << bits) - 1] += 1
    raw, delta = (x.astype(np.int32).reshape(heads, dim, -1) for x in (raw, delta))
    return Counts(Histograms(raw, delta, bits), raw_pairs, delta_pairs, edges, tokens)


def _pairs_by_channel(channels: Codes, bits: int) -> npt.NDArray[np.int32]:
    """[C, 2^bits, 2^bits] counts of (previous, current) codes."""

    def pairs(rows: Codes) -> npt.NDArray[np.uint16]:
        pair = rows[:, :-1] << bits
        pair |= rows[:, 1:]
        return pair[None].astype(np.uint16)

    lanes = _LANES if bits < NARROW_BITS else 1
    counts = counts_by_channel(channels, 1 << 2 * bits, lanes, pairs)
    return counts.reshape(-1, 1 << bits, 1 << bits)


def _diagonals(by_channel: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """[C, 2 n - 1] sums of the pairs [C, n, n] that are equally far apart."""
    n = by_channel.shape[1]
    sums = [
        np.diagonal(by_channel, apart, 1, 2).sum(axis=1, dtype=np.int32)
        for apart in range(1 - n, n)
    ]
    return np.stack(sums, axis=1)


def _paying_pairs(channels: Codes, found: Histograms) -> tuple[Pairs | None, Pairs | None]:
    """Pairs of codes and of deltas, where there are no more of them than symbols."""
    pairs: list[Pairs | None] = []
    for delta, counts in ((False, found.raw), (True, found.delta)):
        used = np.flatnonzero(counts.any(axis=(0, 1)))
        start, n = int(used[0]), int(used[-1] - used[0]) + 1
        if n * n > channels.size:
            pairs.append(None)
            continue
        low = start - (counts.shape[2] // 2 if delta else 0)
        whole = np.zeros((counts.shape[2],) * 2, np.int64)
        whole[start : start + n, start : start + n] = _pairs(channels, low, n, delta)
        pairs.append(whole)
    return pairs[0], pairs[1]


def _pairs(channels: Codes, low: int, n: int, delta: bool) -> Pairs:
    """[n, n] counts of neighbouring symbols from ``low`` on, in all channels."""
    counts = np.zeros(n * n, np.int64)
    kind = np.uint16 if n * n <= 1 << 16 else np.uint32  # in which what is below 0 wraps around
    block = max(1, max(_BLOCK_SYMBOLS, 2 * n * n) // channels.shape[1])
    for start in range(0, len(channels), block):
        symbols: npt.NDArray[Any] = channels[start : start + block].astype(kind)
        if delta:
            symbols[:, 1:] -= channels[start : start + block, :-1]
        index = symbols[:, :-1] * kind(n)
        index += symbols[:, 1:]
        index -= kind(low * (n + 1) & np.iinfo(kind).max)
        counts += np.bincount(index.ravel(), minlength=n * n)
    return counts.reshape(n, n)
