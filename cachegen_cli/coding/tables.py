"""Probability tables as they stand in a stream.

A table of counts n_i is stored as weights w_i = round(sqrt(n_i / 3)), at least 1 where
n_i > 0, and used as integer frequencies w_i^2. Rounding a square root costs every
entry the same, 0.24 / c^2 bits of payload for w = c sqrt(n), while the entry itself
takes log2 c + const bits, so c = 1 / sqrt(3) is where the sum is least; an entry
comes to 1.5-2.5 bits in all. Weights are range-coded as differences from the first
row (scaled by a row's gain), whose own entries are coded as differences from their
left neighbours, with two-sided geometric models chosen by one byte each.

Everything is integer arithmetic, so a table is the same on every machine.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.ranges import (
    WORD,
    categorical,
    decoder,
    encoder,
    stream_bytes,
    words,
)

Integers = npt.NDArray[np.integer[Any]]

MAX_WEIGHT = 255
GAIN_UNIT = 32  # a gain of 32 is 1; rows up to 8 times the first can be predicted
# ratio of the frequencies of neighbouring magnitudes, in 1/256
_RATIOS = (2, 5, 10, 20, 36, 56, 80, 104, 128, 152, 176, 196, 212, 226, 238, 248)
_UNSCALED = 3 * MAX_WEIGHT**2  # counts from which on weights would be too large
_LOG2_SQUARES = np.log2(np.maximum(np.arange(MAX_WEIGHT + 1.0) ** 2, 1))
_DIFFERENCES = 2 * MAX_WEIGHT + 1  # that weights may have
# where each zigzag value stands among the differences in their order
_ZIGZAG = MAX_WEIGHT + np.array([(v + 1) // 2 * (-1) ** v for v in range(_DIFFERENCES)])
_MODEL_BYTES = 3  # of the first row; of other rows where the prediction is 0; elsewhere


def weights(counts: Integers) -> Integers:
    """Weights [n, K] of count rows [n, K], 0 where a symbol does not occur."""
    peak = int(counts.max(initial=0))
    if peak < min(_UNSCALED, counts.size):  # looking them up costs less than so many roots
        return _weights(np.arange(peak + 1), 1 / 3).take(counts)
    largest = np.maximum(counts.max(axis=-1, keepdims=True), 1)
    return _weights(counts, np.minimum(1 / 3, MAX_WEIGHT**2 / largest))


def _weights(counts: Integers, unit: Any) -> Integers:
    found = np.rint(np.sqrt(counts * unit)).astype(np.int32)
    return np.where(counts > 0, np.maximum(found, 1), 0)


def frequencies(table: Integers) -> Integers:
    """Integer frequencies of weights: their squares."""
    return table.astype(np.int64) ** 2


def payload_bits(counts: Integers, rows: Integers) -> float:
    """Bits of symbols with counts [n, K] under the tables of weights [n, K]."""
    total = np.log2(np.maximum(np.einsum("ij,ij->i", rows, rows, dtype=np.int64), 1))
    per_symbol = _LOG2_SQUARES.take(rows)
    per_symbol *= counts
    return float((counts.sum(axis=1) * total).sum() - per_symbol.sum())


class TableSet:
    """Weights [n, K] with the first row as the prediction of the others."""

    def __init__(self, rows: Integers, with_gains: bool) -> None:
        self.rows = rows
        self.gains = _gains(rows) if with_gains else None
        best = [_best_ratio(counts) for counts in self._counts()]
        self._models = [ratio for ratio, _ in best]
        self._bits = sum(bits for _, bits in best)

    @property
    def predicted_bytes(self) -> int:
        """Upper bound of the length of `encode`'s result."""
        gains = 0 if self.gains is None else len(self.gains)
        return _MODEL_BYTES + gains + stream_bytes(self._bits, self.rows.size)

    def encode(self) -> bytes:
        """Model bytes, gains if there are any, and range-coded differences."""
        coder = encoder()
        for part, ratio in zip(_residuals(self.rows, self.gains), self._models, strict=True):
            if part.size:
                coder.encode(part, categorical(_model(ratio)))
        gains = b"" if self.gains is None else self.gains.astype(np.uint8).tobytes()
        return bytes(self._models) + gains + words(coder)

    def _counts(self) -> list[Integers]:
        """How often each zigzag value occurs in each part of `_residuals`, in one pass."""
        first, others = self.rows[0], self.rows[1:]
        predicted = _predicted(first, 1 if self.gains is None else len(others), self.gains)
        # differences of empty predictions are counted behind all others
        shift = np.where(predicted == 0, 3 * MAX_WEIGHT + 1, MAX_WEIGHT) - predicted
        found = np.bincount((others + shift).ravel(), minlength=2 * _DIFFERENCES)
        there, empty = found.reshape(2, _DIFFERENCES)[:, _ZIGZAG]
        start = np.bincount(_zigzag(np.diff(first, prepend=0)), minlength=_DIFFERENCES)
        return [start, empty, there]


def decode_tables(data: bytes, n: int, n_symbols: int, with_gains: bool) -> Integers:
    """The weights [n, K] that `TableSet.encode` wrote.

    Raises:
        ValueError: the bytes are no such tables.
    """
    head = _MODEL_BYTES + (n - 1 if with_gains else 0)
    if len(data) < head or max(data[:_MODEL_BYTES]) >= len(_RATIOS) or (len(data) - head) % WORD:
        raise ValueError("its tables are cut or garbled")
    models = [categorical(_model(ratio)) for ratio in data[:_MODEL_BYTES]]
    coder = decoder(data[head:])
    first = _signed(_decode(coder, models[0], n_symbols)).cumsum()
    rows = np.zeros((n, n_symbols), np.int64)
    rows[0] = first
    gains = np.frombuffer(data[_MODEL_BYTES:head], np.uint8) if with_gains else None
    predicted = _predicted(first, n - 1, gains)
    empty = predicted == 0
    rows[1:][empty] = _signed(_decode(coder, models[1], int(empty.sum())))
    rows[1:][~empty] = _signed(_decode(coder, models[2], int((~empty).sum())))
    rows[1:] += predicted
    if rows.min() < 0 or rows.max() > MAX_WEIGHT:
        raise ValueError("its tables hold impossible weights")
    return rows


def _gains(rows: Integers) -> Integers:
    """How much larger each row is than the first, in 1/32, as far as a byte holds it."""
    sums = rows.sum(axis=1)
    return np.clip((sums[1:] * GAIN_UNIT * 2 + sums[0]) // (2 * max(int(sums[0]), 1)), 0, 255)


def _predicted(first: Integers, n: int, gains: Integers | None) -> Integers:
    if gains is None:
        return np.broadcast_to(first, (n, len(first)))
    scaled = (first[None] * gains[:, None].astype(np.int64) + GAIN_UNIT // 2) // GAIN_UNIT
    return np.minimum(scaled, MAX_WEIGHT)


def _residuals(rows: Integers, gains: Integers | None) -> list[npt.NDArray[np.int32]]:
    """Zigzag differences: of the first row, where the prediction is 0, and elsewhere."""
    predicted = _predicted(rows[0], len(rows) - 1, gains)
    difference = rows[1:] - predicted
    empty = predicted == 0
    return [
        _zigzag(np.diff(rows[0], prepend=0)),
        _zigzag(difference[empty]),
        _zigzag(difference[~empty]),
    ]


def _zigzag(x: Integers) -> npt.NDArray[np.int32]:
    return np.where(x >= 0, 2 * x, -2 * x - 1).astype(np.int32)


def _signed(x: Integers) -> npt.NDArray[np.int64]:
    x = x.astype(np.int64)
    return np.where(x % 2 == 0, x // 2, -(x + 1) // 2)


@cache
def _model(ratio: int) -> npt.NDArray[np.int64]:
    """Frequencies of zigzag values 0 ... 510: geometric in the magnitude, never 0."""
    found = [1 << 24]
    for _ in range(MAX_WEIGHT):
        found.append(found[-1] * _RATIOS[ratio] >> 8)
    return np.repeat(np.array(found, np.int64), 2)[1:] + 1


@cache
def _information() -> npt.NDArray[np.float64]:
    """Bits of each zigzag value under each ratio's model, [ratios, 511]."""
    models = np.array([_model(ratio) for ratio in range(len(_RATIOS))], np.float64)
    bits: npt.NDArray[np.float64] = np.log2(models.sum(axis=1, keepdims=True) / models)
    return bits


def _best_ratio(counts: Integers) -> tuple[int, float]:
    """The ratio under which values with these counts cost least, and how many bits."""
    bits = _information() @ counts
    best = int(bits.argmin())
    return best, float(bits[best])


def _decode(coder: Any, model: Any, n: int) -> npt.NDArray[np.int32]:
    found: npt.NDArray[np.int32] = coder.decode(model, n) if n else np.zeros(0, np.int32)
    return found
