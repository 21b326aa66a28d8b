"""The context model: a table for each previous symbol of the channel, pooled over channels.

A decoder knows a context only when the symbol before is decoded, so channels are cut into
segments that advance side by side: at each step the segments are grouped by context, and
a group is coded in one call.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.blocks import block_frequencies, block_length, join, split
from cachegen_cli.coding.fits import Symbols, TableFit
from cachegen_cli.coding.ranges import (
    categorical,
    code_length,
    decoder,
    encoder,
    stream_bytes,
    words,
)
from cachegen_cli.coding.statistics import Statistics, segment_blocks
from cachegen_cli.coding.tables import TableSet, decode_tables, frequencies, weights


class Context(TableFit):
    """A table for each previous symbol of the channel; segments are coded side by side."""

    name: ClassVar[str] = "context"

    @classmethod
    def fit(cls, stats: Statistics) -> Context | None:
        """Fit to the counts of a tensor."""
        if stats.pairs is None:
            return None
        mean = stats.channel.sum(axis=0, dtype=np.int64) // stats.n_symbols
        rows = weights(np.concatenate([mean[None], stats.pairs]))
        # the first row also codes segments' first symbols, which may be rare in the mean
        rows[0] = np.maximum(rows[0], stats.first > 0)
        table = frequencies(rows)
        bits = code_length(stats.first, table[0]) + code_length(stats.pairs, table[1:])
        n = stats.n_symbols
        return cls(stats.delta, stats.low, n, TableSet(rows, True), stream_bytes(bits))

    def payload(self, symbols: Symbols) -> bytes:
        """The symbols [C, T], coded."""
        models = _Contexts(self.table_set.rows)
        blocks, rest = split(symbols, self.n_symbols)
        coder = encoder()
        channels, tokens = symbols.shape
        lanes, active = _lanes(blocks, segment_blocks(channels, tokens, self.n_symbols))
        for step in range(len(lanes)):
            if step == 0:
                coder.encode(lanes[0], models.block(0))
                continue
            n = active[step]
            order, bounds = _by_context(lanes[step - 1, :n] % self.n_symbols, self.n_symbols)
            current = lanes[step, :n][order]
            for context, start, end in bounds:
                coder.encode(current[start:end], models.block(context + 1))
        previous = blocks[:, -1] % self.n_symbols if blocks.size else None
        for column in rest.astype(np.int32).T:
            if previous is None:
                coder.encode(np.ascontiguousarray(column), models.single(0))
            else:
                order, bounds = _by_context(previous, self.n_symbols)
                current = column[order]
                for context, start, end in bounds:
                    coder.encode(current[start:end], models.single(context + 1))
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
        for step in range(len(active)):
            if step == 0:
                lanes[0] = coder.decode(models.block(0), segments * channels)
                continue
            order, bounds = _by_context(lanes[step - 1, : active[step]] % n, n)
            lanes[step, order] = np.concatenate(
                [coder.decode(models.block(context + 1), end - start)
                 for context, start, end in bounds]
            )  # fmt: skip
        by_segment = lanes.reshape(len(lanes), segments, channels).transpose(2, 1, 0)
        blocks = by_segment.reshape(channels, -1)[:, :n_blocks]
        rest = np.zeros((n_rest, channels), np.int32)
        previous = blocks[:, -1] % n if n_blocks else None
        for step in range(n_rest):
            if previous is None:
                rest[step] = coder.decode(models.single(0), channels)
            else:
                order, bounds = _by_context(previous, n)
                rest[step, order] = np.concatenate(
                    [coder.decode(models.single(context + 1), end - start)
                     for context, start, end in bounds]
                )  # fmt: skip
            previous = rest[step]
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


def _by_context(previous: Symbols, n: int) -> tuple[Symbols, list[tuple[int, int, int]]]:
    """(stable order by context, [(context, start, end), ...] of the contexts that occur)."""
    small = previous.astype(np.uint8 if n <= 256 else np.uint16)
    order = np.argsort(small, kind="stable")
    ends = np.bincount(small, minlength=n).cumsum().tolist()
    bounds = [
        (context, start, end)
        for context, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
        if end > start
    ]
    return order, bounds
