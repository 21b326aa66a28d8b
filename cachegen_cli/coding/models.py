"""The symbol models: how each describes probabilities, what it costs, how it codes.

A model is fitted to `Statistics`; the fit knows the bytes of its tables and an upper
bound of its payload, so the smallest can be chosen before anything is encoded. `encode`
then writes exactly that, and `decode` needs only what is in the stream.

pooled    one table for the tensor
channel   a table for each channel, coded as differences from their mean
shape     two bytes a channel name a discretized Laplace or Gaussian table
context   a table for each previous symbol of the channel, pooled over channels
plain     no model: codes packed at their width
calibrated  a table for each channel that both sides have from a profile
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cachegen_cli.coding import shapes
from cachegen_cli.coding.blocks import block_frequencies, block_length, join, split
from cachegen_cli.coding.context import Context
from cachegen_cli.coding.fits import Symbols, TableFit
from cachegen_cli.coding.ranges import (
    categorical,
    code_length,
    decoder,
    encoder,
    stream_bytes,
    words,
)
from cachegen_cli.coding.statistics import Statistics
from cachegen_cli.coding.tables import TableSet, decode_tables, frequencies, payload_bits, weights
from cachegen_cli.entropy import information


class Pooled(TableFit):
    """One table for the tensor."""

    name: ClassVar[str] = "pooled"

    @staticmethod
    def least_bytes(stats: Statistics) -> float:
        """What the best table for all channels takes, before it is paid for."""
        return float(information(stats.pooled, stats.pooled.sum())) / 8

    @classmethod
    def fit(cls, stats: Statistics) -> Pooled:
        """Fit to the counts of a tensor."""
        counts = stats.pooled[None]
        rows = weights(counts)
        payload = stream_bytes(payload_bits(counts, rows), stats.blocks)
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


class Channel(TableFit):
    """A table for each channel."""

    name: ClassVar[str] = "channel"

    @classmethod
    def fit(cls, stats: Statistics) -> Channel:
        """Fit to the counts of a tensor."""
        counts = stats.channel
        mean = stats.pooled[None] // len(counts)
        rows = np.concatenate([weights(mean), weights(counts)])
        payload = stream_bytes(payload_bits(counts, rows[1:]), stats.n)
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
        payload = stream_bytes(bits, stats.n)
        return cls(stats.delta, stats.low, stats.n_symbols, shape, location, edge, payload)

    @staticmethod
    def least_bytes(stats: Statistics) -> float:
        """What no shape can do better than."""
        return stats.ideal_bytes + 2 * len(stats.channel) + 1

    @property
    def table_bytes(self) -> int:
        """Bytes of `tables`, or an upper bound."""
        return 2 * len(self.shape) + 1

    @property
    def parameters(self) -> int:
        """Numbers that were fitted."""
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
    parameters: int = 0

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


@dataclass
class Calibrated:
    """A table for each channel that both sides have already."""

    name: ClassVar[str] = "calibrated"
    rows: Symbols
    n_symbols: int
    payload_bytes: int
    delta: bool = False
    low: int = 0
    table_bytes: int = 0
    parameters: int = 0

    @classmethod
    def fit(cls, counts: Symbols, rows: Symbols) -> Calibrated | None:
        """Find the length under frequencies [C, n], all positive.

        Args:
            counts: [C, 2^bits] of the codes.

        Returns:
            None where a code occurs for which there is no frequency.
        """
        n = rows.shape[1]
        if counts[:, n:].any():
            return None
        bits = code_length(counts[:, :n].astype(np.int64), rows)
        return cls(rows, n, stream_bytes(bits, int(counts.sum())))

    def tables(self) -> bytes:
        """None."""
        return b""

    def payload(self, symbols: Symbols) -> bytes:
        """The symbols [C, T], coded."""
        coder = encoder()
        for row, channel in zip(self.rows, symbols.astype(np.int32), strict=True):
            coder.encode(channel, categorical(row))
        return words(coder)

    @staticmethod
    def decode_with(rows: Symbols, payload: bytes, tokens: int) -> Symbols:
        """The symbols [C, T] of a payload."""
        coder = decoder(payload)
        return np.stack([coder.decode(categorical(row), tokens) for row in rows])


MODELS: dict[str, Any] = {m.name: m for m in (Pooled, Channel, Shape, Context, Plain)}


def _independent(row: Symbols) -> Any:
    """The model of blocks of independent symbols."""
    return categorical(block_frequencies(row, np.broadcast_to(row, (len(row), len(row)))))
