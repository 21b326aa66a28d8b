"""The symbol models: how each describes probabilities, what it costs, how it codes.

A model is fitted to `Statistics`; the fit knows the bytes of its tables and an upper
bound of its payload, so the smallest can be chosen before anything is encoded. `encode`
then writes exactly that, and `decode` needs only what is in the stream.

pooled    one table for the tensor
channel   a table for each channel, coded as differences from their mean
shape     two bytes a channel name a discretized Laplace or Gaussian table
context   a table for each previous symbol of the channel, pooled over channels
plain     no model: codes packed at their width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding import shapes
from cachegen_cli.coding.blocks import block_frequencies, block_length, join, split
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

Symbols = npt.NDArray[np.integer[Any]]


class Fit(Protocol):
    """A model fitted to a tensor."""

    name: ClassVar[str]
    delta: bool
    low: int
    n_symbols: int
    table_bytes: int
    payload_bytes: int

    def tables(self) -> bytes:
        """The tables as they stand in the stream, at most ``table_bytes`` long."""

    def payload(self, symbols: Symbols) -> bytes:
        """Symbols [C, T] from 0 on, coded; at most ``payload_bytes`` long."""


@dataclass
class _TableFit:
    """A fit whose tables are a `TableSet`."""

    delta: bool
    low: int
    n_symbols: int
    table_set: TableSet
    payload_bytes: int

    @property
    def table_bytes(self) -> int:
        """Bytes of `tables`, or an upper bound."""
        return self.table_set.predicted_bytes

    def tables(self) -> bytes:
        """What `decode` needs beside the payload."""
        return self.table_set.encode()


class Pooled(_TableFit):
    """One table for the tensor."""

    name: ClassVar[str] = "pooled"

    @classmethod
    def fit(cls, stats: Statistics) -> Pooled:
        """Fit to the counts of a tensor."""
        counts = stats.channel.sum(axis=0, dtype=np.int64)[None]
        rows = weights(counts)
        payload = stream_bytes(code_length(counts, frequencies(rows)))
        return cls(stats.delta, stats.low, stats.n_symbols, TableSet(rows, False), payload)

    def payload(self, symbols: Symbols) -> bytes:
        """The symbols [C, T], coded."""
        row = frequencies(self.table_set.rows[0])
        blocks, rest = split(symbols, self.n_symbols)
        coder = encoder()
        coder.encode(blocks.ravel(), _independent(row))
        coder.encode(rest.astype(np.int32).ravel(), categorical(row))
        return words(coder)

    @staticmethod
    def decode(tables: bytes, payload: bytes, channels: int, tokens: int, n: int) -> Symbols:
        """The symbols [C, T] of a stream's tables and payload."""
        row = frequencies(decode_tables(tables, 1, n, False)[0])
        blocks, rest = divmod(tokens, block_length(n))
        coder = decoder(payload)
        found = coder.decode(_independent(row), channels * blocks).reshape(channels, blocks)
        left = coder.decode(categorical(row), channels * rest).reshape(channels, rest)
        return join(found, left, n)


class Channel(_TableFit):
    """A table for each channel."""

    name: ClassVar[str] = "channel"

    @classmethod
    def fit(cls, stats: Statistics) -> Channel:
        """Fit to the counts of a tensor."""
        counts = stats.channel
        mean = counts.sum(axis=0, dtype=np.int64) // len(counts)
        rows = weights(np.concatenate([mean[None], counts]))
        payload = stream_bytes(code_length(counts, frequencies(rows[1:])))
        return cls(stats.delta, stats.low, stats.n_symbols, TableSet(rows, False), payload)

    def payload(self, symbols: Symbols) -> bytes:
        """The symbols [C, T], coded."""
        coder = encoder()
        for row, channel in zip(self.table_set.rows[1:], symbols.astype(np.int32), strict=True):
            coder.encode(channel, categorical(frequencies(row)))
        return words(coder)

    @staticmethod
    def decode(tables: bytes, payload: bytes, channels: int, tokens: int, n: int) -> Symbols:
        """The symbols [C, T] of a stream's tables and payload."""
        rows = decode_tables(tables, channels + 1, n, False)
        coder = decoder(payload)
        return np.stack([coder.decode(categorical(row), tokens) for row in frequencies(rows[1:])])


@dataclass
class Shape:
    """Two bytes a channel name its table, one byte the tensor's edges."""

    name: ClassVar[str] = "shape"
    delta: bool
    low: int
    n_symbols: int
    shape: Symbols
    location: Symbols
    edge: int
    payload_bytes: int

    @classmethod
    def fit(cls, stats: Statistics) -> Shape:
        """Fit to the counts of a tensor."""
        shape, location, edge, bits = shapes.fit(stats.channel)
        n = stats.n_symbols
        return cls(stats.delta, stats.low, n, shape, location, edge, stream_bytes(bits))

    @property
    def table_bytes(self) -> int:
        """Bytes of `tables`, or an upper bound."""
        return 2 * len(self.shape) + 1

    def tables(self) -> bytes:
        """What `decode` needs beside the payload."""
        channels = np.concatenate([self.shape, self.location]).astype(np.uint8)
        return bytes([self.edge]) + channels.tobytes()

    def payload(self, symbols: Symbols) -> bytes:
        """The symbols [C, T], coded."""
        coder = encoder()
        rows = shapes.tables(self.shape, self.location, self.edge, self.n_symbols)
        for row, channel in zip(rows, symbols.astype(np.int32), strict=True):
            coder.encode(channel, categorical(row))
        return words(coder)

    @staticmethod
    def decode(tables: bytes, payload: bytes, channels: int, tokens: int, n: int) -> Symbols:
        """The symbols [C, T] of a stream's tables and payload."""
        if len(tables) != 2 * channels + 1 or tables[0] >= len(shapes.EDGES):
            raise ValueError("its shape bytes are cut or garbled")
        named = np.frombuffer(tables[1:], np.uint8).astype(np.int64)
        shape, location = named[:channels], named[channels:]
        if shape.max(initial=0) >= 2 * shapes.N_SCALES:
            raise ValueError("its shape bytes name no shape")
        coder = decoder(payload)
        rows = shapes.tables(shape, location, tables[0], n)
        return np.stack([coder.decode(categorical(row), tokens) for row in rows])


class Context(_TableFit):
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


@dataclass
class Plain:
    """Codes packed at their width, least significant bit first."""

    name: ClassVar[str] = "plain"
    low: int
    n_symbols: int
    payload_bytes: int
    bits: int
    delta: bool = False
    table_bytes: int = 0

    @classmethod
    def fit(cls, channels: int, tokens: int, bits: int) -> Plain:
        """Fit to the counts of a tensor."""
        return cls(0, 1 << bits, -(-channels * tokens * bits // 8), bits)

    def tables(self) -> bytes:
        """What `decode` needs beside the payload."""
        return b""

    def payload(self, symbols: Symbols) -> bytes:
        """The symbols [C, T], coded."""
        planes = (
            symbols.astype(np.uint8).reshape(-1, 1) >> np.arange(self.bits, dtype=np.uint8)
        ) & 1
        return np.packbits(planes.ravel(), bitorder="little").tobytes()

    @staticmethod
    def decode(tables: bytes, payload: bytes, channels: int, tokens: int, n: int) -> Symbols:
        """The symbols [C, T] of a stream's tables and payload."""
        bits = (n - 1).bit_length()
        size = channels * tokens * bits
        if tables or len(payload) != -(-size // 8):
            raise ValueError("its packed codes are cut")
        planes = np.unpackbits(np.frombuffer(payload, np.uint8), count=size, bitorder="little")
        values = planes.reshape(-1, bits) @ (1 << np.arange(bits))
        return values.reshape(channels, tokens)


MODELS: dict[str, Any] = {m.name: m for m in (Pooled, Channel, Shape, Context, Plain)}


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


def _independent(row: Symbols) -> Any:
    """The model of blocks of independent symbols."""
    return categorical(block_frequencies(row, np.broadcast_to(row, (len(row), len(row)))))


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
