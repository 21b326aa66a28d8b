"""The context model: a table for each previous symbol of the channel, pooled over channels.

A decoder knows a context only when the symbol before is decoded, so channels are cut into
segments that advance side by side: at each step the segments are grouped by context, and
a group is coded in one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.blocks import block_frequencies, block_length, join, split
from cachegen_cli.coding.counts import segment_blocks
from cachegen_cli.coding.fits import Symbols, TableFit
from cachegen_cli.coding.ranges import (
    categorical,
    decoder,
    encoder,
    stream_bytes,
    words,
)
from cachegen_cli.coding.statistics import Statistics
from cachegen_cli.coding.tables import TableSet, decode_tables, frequencies, payload_bits, weights
from cachegen_cli.entropy import information


class Context(TableFit):
    """A table for each previous symbol of the channel; segments are coded side by side."""

    name: ClassVar[str] = "context"

    @staticmethod
    def least_bytes(stats: Statistics) -> float:
        """What the best table for each context takes, before any is paid for."""
        if stats.pairs is None:
            return float("inf")
        bits = information(stats.pairs, stats.pairs.sum(axis=1))
        return float(bits.sum() / 8)

    @classmethod
    def fit(cls, stats: Statistics) -> Context | None:
        """Fit to the counts of a tensor."""
        if stats.pairs is None:
            return None
        mean = stats.pooled // stats.n_symbols
        rows = weights(np.concatenate([mean[None], stats.pairs]))
        # the first row also codes segments' first symbols, which may be rare in the mean
        rows[0] = np.maximum(rows[0], stats.first > 0)
        bits = payload_bits(stats.first[None], rows[:1]) + payload_bits(stats.pairs, rows[1:])
        n = stats.n_symbols
        payload = stream_bytes(bits, stats.blocks)
        return cls(stats.delta, stats.low, n, TableSet(rows, True), payload)

    def payload(self, symbols: Symbols) -> bytes:
        """The symbols [C, T], coded."""
        models = _Contexts(self.table_set.rows)
        blocks, rest = split(symbols, self.n_symbols)
        coder = encoder()
        channels, tokens = symbols.shape
        lanes, active = _lanes(blocks, segment_blocks(channels, tokens, self.n_symbols))
        n = self.n_symbols
        previous = None
        for lane, count in zip(lanes, active, strict=True):
            current = lane[:count]
            _encode(coder, current, None if previous is None else previous[:count], models.block)
            previous = current % n
        previous = blocks[:, -1] % n if blocks.size else None
        for column in rest.astype(np.int32).T:
            _encode(coder, column, previous, models.single)
            previous = column
        return words(coder)

    @staticmethod
    def decode(tables: bytes, payload: bytes, channels: int, tokens: int, n: int) -> Symbols:
        """The symbols [C, T] of a stream's tables and payload."""
        models = _Contexts(decode_tables(tables, n + 1, n, True))
        coder = decoder(payload)
        n_blocks, n_rest = divmod(tokens, block_length(n))
        length = segment_blocks(channels, tokens, n)
        active = _active(channels, n_blocks, length)
        segments = -(-n_blocks // length)
        lanes = np.zeros((len(active), segments * channels), np.int32)
        previous = None
        for step, count in enumerate(active):
            behind = None if previous is None else previous[:count]
            lanes[step, :count] = _decode(coder, count, behind, models.block)
            previous = lanes[step, :count] % n
        by_segment = lanes.reshape(len(lanes), segments, channels).transpose(2, 1, 0)
        blocks = by_segment.reshape(channels, -1)[:, :n_blocks]
        rest = np.zeros((n_rest, channels), np.int32)
        previous = blocks[:, -1] % n if n_blocks else None
        for step in range(n_rest):
            rest[step] = previous = _decode(coder, channels, previous, models.single)
        return join(blocks, rest.T, n)


class _Contexts:
    """Models of blocks and of single symbols by table row, each made when it is first used.

    Row 0 is for symbols without context, row c + 1 for those behind the symbol c.
    """

    def __init__(self, rows: Symbols) -> None:
        self.table = frequencies(rows)
        self.blocks: dict[int, Any] = {}
        self.singles: dict[int, Any] = {}

    def block(self, row: int) -> Any:
        if row not in self.blocks:
            self.blocks[row] = categorical(block_frequencies(self.table[row], self.table[1:]))
        return self.blocks[row]

    def single(self, row: int) -> Any:
        if row not in self.singles:
            self.singles[row] = categorical(self.table[row])
        return self.singles[row]


def _active(channels: int, blocks: int, length: int) -> list[int]:
    """How many lanes are left at each step: the last segment of a channel may be shorter."""
    segments = -(-blocks // length)
    last = blocks - (segments - 1) * length
    steps = min(length, blocks)
    return [channels * (segments if step < last else segments - 1) for step in range(steps)]


def _lanes(blocks: Symbols, length: int) -> tuple[npt.NDArray[np.int32], list[int]]:
    """Blocks [C, B] as [step, segment x channel], zeros where a segment has ended."""
    channels, n = blocks.shape
    segments = -(-n // length)
    padded = np.zeros((channels, segments * length), np.int32)
    padded[:, :n] = blocks
    lanes = padded.reshape(channels, segments, length).transpose(2, 1, 0)
    active = _active(channels, n, length)
    return np.ascontiguousarray(lanes.reshape(length, -1)[: len(active)]), active


def _encode(
    coder: Any, current: Symbols, previous: Symbols | None, model: Callable[[int], Any]
) -> None:
    """Code symbols under ``model(0)``, or each group behind a symbol c under ``model(c + 1)``."""
    if previous is None:
        coder.encode(np.ascontiguousarray(current), model(0))
        return
    order, bounds = _by_context(previous)
    grouped = current[order]
    for context, start, end in bounds:
        coder.encode(grouped[start:end], model(context + 1))


def _decode(
    coder: Any, count: int, previous: Symbols | None, model: Callable[[int], Any]
) -> npt.NDArray[np.int32]:
    """The inverse of `_encode`."""
    if previous is None:
        found: npt.NDArray[np.int32] = coder.decode(model(0), count)
        return found
    order, bounds = _by_context(previous)
    found = np.empty(count, np.int32)
    found[order] = np.concatenate(
        [coder.decode(model(context + 1), end - start) for context, start, end in bounds]
    )
    return found


def _by_context(previous: Symbols) -> tuple[Symbols, list[tuple[int, int, int]]]:
    """(stable order by context, [(context, start, end), ...] of the contexts that occur)."""
    small = previous.astype(np.uint16 if previous.max() > 255 else np.uint8)
    order = np.argsort(small, kind="stable")
    ends = np.bincount(small).cumsum().tolist()
    bounds = [
        (context, start, end)
        for context, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
        if end > start
    ]
    return order, bounds
