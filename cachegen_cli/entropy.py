"""Token delta, histograms of codes, Shannon entropies and byte estimates.

An estimate is what an ideal coder with free probability tables would need:
``n log2 n - sum(c log2 c)`` bits for a distribution with counts c and n symbols, never
more than the code width, rounded up to bytes once a head, plus the group parameters.
The raw and the delta histogram of each channel come out of one counting pass, and all
four estimates (raw or delta, by channel or pooled over a head's channels) out of those
two, in float64. Cost and memory hardly depend on the alphabet: nothing is one-hot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cachegen_cli.device import mx
from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.quantize import CodeStream, batch, parameter_bytes

Counts = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

# One np.bincount call counts a block of channels, each in bins of its own. Few bins with
# many hits stall the CPU on its own stores, so narrow alphabets are spread over lanes.
_BLOCK_SYMBOLS = 1 << 16
_BLOCK_BINS = 1 << 14
_LANES = 4
_NARROW_BITS = 4
_INFORMATION_TERMS = 1 << 15  # of an entropy that are looked up at a time


@dataclass(frozen=True)
class Histograms:
    """Counts by channel of one batch of heads.

    Attributes:
        raw: [G, D, 2^bits] counts of the codes.
        delta: [G, D, 2^(bits+1) - 1] counts of their token deltas (row 0 as it is);
            index d + 2^bits - 1 counts the delta d.
        bits: code width.
    """

    raw: Counts
    delta: Counts
    bits: int

    @cached_property
    def tokens(self) -> int:
        """Codes of a channel, and as many deltas."""
        return int(self.raw[0, 0].sum()) if self.raw.size else 0

    @cached_property
    def raw_pooled(self) -> npt.NDArray[np.int64]:
        """[G, 2^bits] counts in all channels of a head."""
        return self.raw.sum(axis=1, dtype=np.int64)

    @cached_property
    def delta_pooled(self) -> npt.NDArray[np.int64]:
        """[G, 2^(bits+1) - 1] counts of token deltas likewise."""
        return self.delta.sum(axis=1, dtype=np.int64)

    @cached_property
    def raw_bits(self) -> Floats:
        """[G, D] bits of ideal coding of each channel's codes."""
        return information(self.raw, self.tokens)

    @cached_property
    def delta_bits(self) -> Floats:
        """[G, D] bits of ideal coding of each channel's token deltas."""
        return information(self.delta, self.tokens)


class Estimates(NamedTuple):
    """Entropy bytes by head, parameters included, of the four ways to code a tensor."""

    raw_channel: list[int]
    raw_pooled: list[int]
    delta_channel: list[int]
    delta_pooled: list[int]


def token_delta(codes_flat: mx.array) -> mx.array:
    """Row 0 as it is, then differences of consecutive rows, [N, D]; a cumulative sum undoes it."""
    return token_delta_batched(codes_flat[None])[0]


def token_delta_batched(codes_flat: mx.array) -> mx.array:
    """`token_delta` of G heads, [G, N, D], along axis 1."""
    if codes_flat.shape[1] <= 1:
        return codes_flat
    return mx.concatenate([codes_flat[:, :1], codes_flat[:, 1:] - codes_flat[:, :-1]], axis=1)


def symbol_entropy_bits(symbols: mx.array) -> float:
    """Shannon entropy of an integer array of any shape, in bits a symbol; 0 if it is empty."""
    counts = np.unique(np.array(symbols.astype(mx.int32)), return_counts=True)[1]
    n_symbols = counts.sum()
    return float(information(counts, n_symbols) / n_symbols) if n_symbols else 0.0


def fixed_width_bytes(stream: CodeStream) -> int:
    """Bytes of one head packed at the code width, plus its parameters."""
    return fixed_width_bytes_batched(batch(stream))[0]


def fixed_width_bytes_batched(stream: CodeStream) -> list[int]:
    """`fixed_width_bytes` of each of the G heads."""
    heads, dim = stream.codes.shape[0], stream.codes.shape[-1]
    packed = -(-stream.n_rows * dim * stream.bits // 8)
    return [packed + parameter_bytes(stream)] * heads


def entropy_coded_bytes(
    stream: CodeStream, use_delta: bool = True, per_channel: bool = True
) -> int:
    """Entropy-coded bytes of one head, parameters included, never above fixed width.

    Args:
        stream: codes of one head.
        use_delta: estimate the token deltas instead of the codes.
        per_channel: one distribution a channel (CacheGen section 5.1.3) instead of one a head.

    Raises:
        InputError: the quantized tensor held NaN or infinite values.
    """
    return entropy_coded_bytes_batched(batch(stream), use_delta, per_channel)[0]


def entropy_coded_bytes_batched(
    stream: CodeStream, use_delta: bool = True, per_channel: bool = True
) -> list[int]:
    """`entropy_coded_bytes` of each of the G heads, with one evaluation and one host read."""
    codes = channel_major(stream)
    mx.eval(codes, stream.scale, stream.zero)
    check_finite(stream)
    found = estimates(channel_histograms(np.asarray(codes), stream.bits), parameter_bytes(stream))
    if use_delta:
        return found.delta_channel if per_channel else found.delta_pooled
    return found.raw_channel if per_channel else found.raw_pooled


def channel_major(stream: CodeStream) -> mx.array:
    """A batched stream's codes without padding, [G, D, n_rows] uint8, not evaluated yet."""
    if stream.codes.ndim != 4:
        raise UsageError(
            f"expected codes [G, n_groups, group_size, D], got shape {tuple(stream.codes.shape)}"
        )
    heads, n_groups, group_size, dim = stream.codes.shape
    rows = stream.codes.astype(mx.uint8).reshape(heads, n_groups * group_size, dim)
    return mx.contiguous(rows[:, : stream.n_rows].swapaxes(1, 2))


def check_finite(stream: CodeStream) -> None:
    """Raise InputError if NaN or infinity went into an evaluated stream.

    Either makes its group's minimum or step non-finite, so reading those is enough.
    """
    if not all(np.isfinite(np.asarray(x)).all() for x in (stream.zero, stream.scale)):
        raise InputError(
            "the tensor holds NaN or infinite values",
            "a model that overflows its 16-bit dtype does this; try another precision",
        )


def channel_histograms(codes: npt.NDArray[np.uint8], bits: int) -> Histograms:
    """Count codes and token deltas of each channel.

    Args:
        codes: [G, D, T] codes below 2^bits.
        bits: code width, 1 to 8.
    """
    heads, dim, tokens = codes.shape
    alphabet = 1 << bits
    # a channel's bins: alphabet raw ones, then 2 * alphabet - 1 for deltas
    width = 3 * alphabet - 1

    def bins(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
        found = np.empty((2, *rows.shape), np.uint16)
        found[0] = rows
        delta = found[1]
        delta[:, :1] = rows[:, :1]
        np.subtract(rows[:, 1:], rows[:, :-1], out=delta[:, 1:], dtype=np.uint16)
        delta += np.uint16(2 * alphabet - 1)  # a negative delta wrapped around and comes back
        return found

    lanes = _LANES if bits <= _NARROW_BITS else 1
    counts = counts_by_channel(codes.reshape(heads * dim, tokens), width, lanes, bins)
    by_head = counts.reshape(heads, dim, width)
    return Histograms(by_head[..., :alphabet], by_head[..., alphabet:], bits)


def counts_by_channel(
    channels: npt.NDArray[np.uint8],
    width: int,
    lanes: int,
    bins: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint16]],
) -> Counts:
    """[C, width] counts, a block of channels [C, T] at a time.

    Args:
        width: bins of a channel.
        lanes: over which each channel's tokens are spread, where few bins have many hits.
        bins: of the channels of a block [n, T], the bins of whatever is counted [k, n, symbols].
    """
    n, tokens = channels.shape
    counts = np.zeros((n, width), np.int32)
    block = max(1, min(_BLOCK_BINS // (lanes * width), _BLOCK_SYMBOLS // max(tokens, 1)))
    lane = np.arange(block)[:, None] * lanes + np.arange(tokens) % lanes
    base = (lane * width).astype(np.uint16)
    for start in range(0, n, block):
        rows = channels[start : start + block]
        found = bins(rows)
        found += base[: len(rows), : found.shape[2]]
        by_bin = np.bincount(found.ravel(), minlength=len(rows) * lanes * width)
        by_lane = by_bin.reshape(len(rows), lanes, width)
        counts[start : start + block] = by_lane[:, 0] if lanes == 1 else by_lane.sum(axis=1)
    return counts


def estimates(histograms: Histograms, head_parameter_bytes: int) -> Estimates:
    """All four estimates of each head from its two histograms."""

    tokens, dim = histograms.tokens, histograms.raw.shape[1]

    def by_head(bits: Floats, n_symbols: int) -> list[int]:
        found = np.minimum(bits, n_symbols * histograms.bits).sum(axis=1)
        # rounded first, so that float noise never adds a byte
        return [ceil(round(b, 6) / 8) + head_parameter_bytes for b in found.tolist()]

    def pooled(counts: npt.NDArray[np.int64]) -> list[int]:
        return by_head(information(counts, tokens * dim)[:, None], tokens * dim)

    return Estimates(
        by_head(histograms.raw_bits, tokens),
        pooled(histograms.raw_pooled),
        by_head(histograms.delta_bits, tokens),
        pooled(histograms.delta_pooled),
    )


def wide_estimates(codes: npt.NDArray[np.signedinteger[Any]]) -> Estimates:
    """The four estimates of codes [H, D, T] of any size; all heads together, no parameters."""
    found: list[list[npt.NDArray[np.float64]]] = [[], [], [], []]
    for head in codes:  # one after the other, for the sake of memory
        wide = head.astype(np.int32)
        for place, part in ((0, wide), (2, np.diff(wide, axis=1, prepend=0))):
            found[place].append(row_information(part))
            found[place + 1].append(row_information(part.reshape(1, -1)))
    bits = (float(np.concatenate(rows).sum()) if rows else 0.0 for rows in found)
    return Estimates(*([ceil(round(size, 6) / 8)] for size in bits))


def row_information(rows: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Bits of ideal coding of each row [R, N]: [R]; without memory for the alphabet."""
    if not rows.size:
        return np.zeros(len(rows))
    ordered = np.sort(rows, axis=1)
    starts = np.ones(rows.shape, bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    firsts = np.flatnonzero(starts)
    n = rows.shape[1]
    counted = _x_log2_x(np.diff(firsts, append=rows.size))
    return _x_log2_x(np.array(n)) - np.bincount(firsts // n, counted, minlength=len(rows))


def information(
    counts: npt.NDArray[np.integer], n_symbols: npt.NDArray[np.integer] | int
) -> npt.NDArray[np.float64]:
    """Bits that ideal coding of n_symbols [...], or as many each, takes whose counts are
    [..., K]: [...].
    """
    peak = int(counts.max(initial=0))
    # a table of c log2 c costs less than that many logarithms, unless the counts are huge
    table = _x_log2_x(np.arange(peak + 1)) if peak < counts.size else None
    rows = counts.reshape(-1, counts.shape[-1])
    sums = np.empty(len(rows))
    block = max(1, _INFORMATION_TERMS // max(counts.shape[-1], 1))
    for start in range(0, len(rows), block):
        part = rows[start : start + block]
        terms = _x_log2_x(part) if table is None else table.take(part)
        sums[start : start + block] = terms.sum(axis=-1)
    bits: npt.NDArray[np.float64] = _x_log2_x(np.asarray(n_symbols)) - sums.reshape(
        counts.shape[:-1]
    )
    return bits


def _x_log2_x(x: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    product: npt.NDArray[np.float64] = x * np.log2(np.maximum(x, 1))
    return product
