"""The adaptive model: no tables; every probability follows from what was coded before.

Codes [C, T] of any size are coded in blocks of tokens. From the blocks before, coder and
decoder know for each channel how large its codes are, for each kind of repeated token how
well its earlier rows predict it, and within a block, channel group by channel group, how
large a token's codes are. These name one of some classes of expected magnitude, a third of
an octave each, whose table of counts both keep. Integers throughout: the same on every machine.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any, ClassVar

import constriction
import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.learning import CLASSES, LARGEST, SHIFTS, Integers, State
from cachegen_cli.coding.ranges import categorical, decoder, encoder, stream_bytes, words
from cachegen_cli.coding.repeats import Repeats, blocks
from cachegen_cli.parallel import in_process

_GROUPS, _SMALLEST_GROUP, _LARGEST_GROUP = 8, 8, 128  # channel groups of a block, channels of one
_PIECE = 12  # bits of a plain number coded at once


class Adaptive:
    """A fit of the adaptive model, which has nothing to fit but its length."""

    name: ClassVar[str] = "adaptive"
    delta: ClassVar[bool] = False
    table_bytes: ClassVar[int] = 0
    low: ClassVar[int] = 0
    n_symbols: ClassVar[int] = 2

    def __init__(
        self, codes: npt.NDArray[Any], found: Repeats, scales: Integers | None = None
    ) -> None:
        """Fit to codes [C, T].

        Args:
            scales: [C] what is known of the codes' magnitudes before (`learning.scales_of`).
        """
        self.codes, self.found, self.scales = codes, found, scales

    @cached_property
    def payload_bytes(self) -> int:
        """Upper bound of the length of `payload`: takes as long as coding."""
        return in_process(_measured_bytes, self.codes, self.found, self.scales)

    def tables(self) -> bytes:
        """None."""
        return b""

    def payload(self, symbols: npt.NDArray[Any]) -> bytes:
        """The codes [C, T], coded."""
        writer = _Writer()
        channels, tokens = symbols.shape
        _run(writer, symbols, channels, tokens, self.found, self.scales)
        return words(writer.coder)


def _measured_bytes(codes: npt.NDArray[Any], found: Repeats, scales: Integers | None) -> int:
    measure = _Measure()
    channels, tokens = codes.shape
    _run(measure, codes, channels, tokens, found, scales)
    return stream_bytes(measure.bits, measure.symbols)


def decode_adaptive(
    payload: bytes, channels: int, tokens: int, found: Repeats, scales: Integers | None = None
) -> npt.NDArray[np.int32]:
    """The codes [C, T] of a payload; ``scales`` as the model was fitted with."""
    rows = _run(_Reader(payload), None, channels, tokens, found, scales)
    return np.ascontiguousarray(rows.T)


def _run(
    port: Any,
    codes: npt.NDArray[Any] | None,
    channels: int,
    tokens: int,
    found: Repeats,
    scales: Integers | None,
) -> npt.NDArray[Any]:
    """Pass all codes through a port that measures, writes or reads them; as rows [T, C]."""
    rows = np.zeros((tokens, channels), np.int32) if codes is None else codes.T.copy()
    state = State(rows, scales)
    size = min(max(_SMALLEST_GROUP, -(-channels // _GROUPS)), _LARGEST_GROUP)
    for start, end in blocks(tokens):
        predicted = state.begin(start, end, found)
        residuals = np.empty((end - start, channels), np.int64)
        if codes is not None:
            residuals[:] = rows[start:end] - predicted
        for first in range(0, channels, size):
            part = slice(first, min(first + size, channels))
            classes = state.classes(part)
            flat = residuals[:, part].reshape(-1)
            residuals[:, part] = port.code(state, classes.reshape(-1), flat).reshape(classes.shape)
            state.activity(part, residuals[:, part])
        state.end(start, end, residuals, predicted)
    return rows


class _Measure:
    """Adds up the information of codes."""

    def __init__(self) -> None:
        self.bits, self.symbols = 0.0, 0

    def code(self, state: State, classes: Integers, residuals: Integers) -> Integers:
        """Measure residuals and give them back."""
        shifts = SHIFTS[classes]
        high = residuals >> shifts
        symbols = np.clip(high, -LARGEST, LARGEST) + LARGEST
        state.used.append((classes, symbols))
        chances = state.tables[classes, symbols] / state.totals[classes]
        excess = np.abs(high[np.abs(high) >= LARGEST]) - LARGEST + 1
        extra = 5 * excess.size + sum(int(v).bit_length() - 1 for v in excess)
        self.bits += float(shifts.sum() - np.log2(chances).sum()) + extra
        pieces = int((-(-shifts // _PIECE)).sum()) + excess.size * -(-32 // _PIECE)
        self.symbols += residuals.size + pieces + excess.size
        return residuals


class _Writer:
    """Codes residuals class by class."""

    def __init__(self) -> None:
        self.coder = encoder()

    def code(self, state: State, classes: Integers, residuals: Integers) -> Integers:
        """Write residuals and give them back."""
        high = residuals >> SHIFTS[classes]
        symbols = np.clip(high, -LARGEST, LARGEST) + LARGEST
        state.used.append((classes, symbols))
        for name, places in _by_class(classes):
            model = categorical(state.tables[name])
            self.coder.encode(symbols[places].astype(np.int32), model)
            shift = int(SHIFTS[name])
            self._plain(residuals[places] & ((1 << shift) - 1), shift)
            for value in high[places][np.abs(high[places]) >= LARGEST].tolist():
                excess = abs(value) - LARGEST + 1
                length = excess.bit_length() - 1
                self._plain(np.array([length]), 5)
                self._plain(np.array([excess - (1 << length)]), length)
        return residuals

    def _plain(self, values: Integers, bits: int) -> None:
        for low in range(0, bits, _PIECE):
            width = min(_PIECE, bits - low)
            piece = (values >> low) & ((1 << width) - 1)
            self.coder.encode(piece.astype(np.int32), _uniform(width))


class _Reader:
    """The inverse of `_Writer`."""

    def __init__(self, payload: bytes) -> None:
        self.coder = decoder(payload)

    def code(self, state: State, classes: Integers, _: Integers) -> Integers:
        """Read residuals."""
        residuals = np.empty(classes.size, np.int64)
        symbols = np.empty(classes.size, np.int64)
        for name, places in _by_class(classes):
            model = categorical(state.tables[name])
            symbols[places] = self.coder.decode(model, places.size)
            high = symbols[places] - LARGEST
            shift = int(SHIFTS[name])
            low = self._plain(places.size, shift)
            for place in np.flatnonzero(np.abs(high) == LARGEST):
                length = int(self._plain(1, 5)[0])
                excess = (1 << length) + int(self._plain(1, length)[0])
                high[place] = np.sign(high[place]) * (excess - 1 + LARGEST)
            residuals[places] = (high << shift) + low
        state.used.append((classes, symbols))
        return residuals

    def _plain(self, n: int, bits: int) -> Integers:
        values = np.zeros(n, np.int64)
        for low in range(0, bits, _PIECE):
            width = min(_PIECE, bits - low)
            values += self.coder.decode(_uniform(width), n).astype(np.int64) << low
        return values


def _by_class(classes: Integers) -> list[tuple[int, Integers]]:
    """(class, its places in order) of the classes that occur, ascending."""
    order = np.argsort(classes, kind="stable")
    ends = np.bincount(classes, minlength=CLASSES).cumsum()
    present = np.unique(classes)
    return [(int(c), order[ends[c - 1] if c else 0 : ends[c]]) for c in present]


@cache
def _uniform(bits: int) -> Any:
    return constriction.stream.model.Uniform(1 << bits)
