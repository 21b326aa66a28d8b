"""One tensor's codes as a self-contained stream, and back.

A stream is a 24-byte header, the model's tables and the payload; docs/format.md lays it
out byte by byte.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.adaptive import Adaptive, decode_adaptive
from cachegen_cli.coding.choosing import Choice, choose
from cachegen_cli.coding.framing import HEADER, HEADER_BYTES
from cachegen_cli.coding.models import MODELS, Calibrated
from cachegen_cli.coding.repeats import Repeats
from cachegen_cli.coding.statistics import symbols_of
from cachegen_cli.errors import InputError

Codes = npt.NDArray[np.uint8]
Frequencies = npt.NDArray[np.int64]

VERSION = 1
MAX_TOKENS = 1 << 24
MAX_ELEMENTS = 1 << 31
_NAMES = dict(enumerate((*MODELS, Adaptive.name, Calibrated.name)))
_NUMBERS = {name: number for number, name in _NAMES.items()}


def claims(data: bytes) -> tuple[int, int, int]:
    """(code width, channels, tokens) that a stream's header claims; zeros if there is none."""
    if len(data) < HEADER_BYTES:
        return 0, 0, 0
    bits, channels, tokens = HEADER.unpack_from(data)[3:6]
    return bits, channels, tokens


def split(data: bytes, n: int) -> list[bytes]:
    """``n`` streams that stand one after another.

    Raises:
        InputError: they are not that many, or something else is with them.
    """
    found = []
    for _ in range(n):
        if len(data) < HEADER_BYTES:
            break
        *_, table_bytes, payload_bytes = HEADER.unpack_from(data)
        length = HEADER_BYTES + table_bytes + payload_bytes
        found.append(data[:length])
        data = data[length:]
    if len(found) != n or data:
        raise InputError("its streams are not as many as its scheme has", "the file is damaged")
    return found


def encode(
    codes: Codes,
    bits: int,
    choice: Choice | None = None,
    *,
    delta: str = "auto",
    model: str = "auto",
) -> bytes:
    """Code [C, T] codes losslessly; `decode` gives them back.

    Args:
        codes: uint8 codes below 2^bits.
        bits: code width, 1 to 8.
        choice: what `choose` found for these codes, to save finding it again.
        delta, model: as in `choose`.

    Raises:
        UsageError: as in `choose`.
    """
    choice = choice or choose(codes, bits, delta=delta, model=model)
    fit = choice.fit
    symbols = symbols_of(codes, fit.delta) - fit.low
    tables = fit.tables()
    payload = fit.payload(symbols) if codes.size else b""
    head = HEADER.pack(
        VERSION, _NUMBERS[fit.name], fit.delta, bits, *choice.shape,
        fit.low, fit.n_symbols, len(tables), len(payload),
    )  # fmt: skip
    return head + tables + payload


def encode_wide(codes: npt.NDArray[np.int32], fit: Adaptive) -> bytes:
    """Code [C, T] codes of any size under the adaptive model that was fitted to them."""
    payload = fit.payload(codes) if codes.size else b""
    return HEADER.pack(
        VERSION, _NUMBERS[fit.name], 0, width_of(codes), *codes.shape, 0, 2, 0, len(payload)
    ) + payload  # fmt: skip


def width_of(codes: npt.NDArray[np.int32]) -> int:
    """Bits that hold the range of some codes."""
    return (int(codes.max(initial=0)) - int(codes.min(initial=0))).bit_length() or 1


def decode_wide(
    data: bytes, channels: int, found: Repeats, scales: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int32]:
    """The codes [C, T] of `encode_wide`'s stream.

    Args:
        found, scales: what the model was fitted with.

    Raises:
        InputError: the bytes are no such stream.
    """
    try:
        version, number, _, _, claimed, tokens, _, _, _, length = HEADER.unpack_from(data)
        if (version, number) != (VERSION, _NUMBERS[Adaptive.name]):
            raise ValueError("it is not of the adaptive model")
        if len(data) != HEADER_BYTES + length or length % 4:
            raise ValueError("its length is not the one that its header gives")
        if (claimed, tokens) != (channels, found.bucket.size) or channels * tokens > MAX_ELEMENTS:
            raise ValueError("it claims other codes than there can be")
        if not channels * tokens:
            return np.zeros((channels, tokens), np.int32)
        return decode_adaptive(data[HEADER_BYTES:], channels, tokens, found, scales)
    except (ValueError, struct.error, OverflowError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"a stream cannot be decoded: {reason}", "the file is damaged") from error


def decode(data: bytes, expected: Frequencies | None = None) -> Codes:
    """The codes [C, T] of a stream of `encode`.

    Args:
        expected: as in `choose`, where the stream was made with them.

    Raises:
        InputError: the bytes are no stream of this version.
    """
    try:
        return _decode(data, expected)
    except (ValueError, struct.error, OverflowError, AssertionError) as error:
        # AssertionError is how constriction says that words do not fit a model
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"a stream cannot be decoded: {reason}", "the file is damaged") from error


def _decode(data: bytes, expected: Frequencies | None) -> Codes:
    version, number, delta, bits, channels, tokens, low, n, table_bytes, payload_bytes = (
        HEADER.unpack_from(data)
    )
    name = _NAMES.get(number, "")
    known = name in MODELS or name == Calibrated.name
    if version != VERSION or not known or delta > 1 or not 1 <= bits <= 8:
        raise ValueError("its header is of another version or garbled")
    if tokens > MAX_TOKENS or channels * tokens > MAX_ELEMENTS:
        raise ValueError("it claims more codes than a stream may hold")
    if n < 2:  # no model has fewer symbols
        raise ValueError("its header gives no symbols")
    if len(data) != HEADER_BYTES + table_bytes + payload_bytes:
        raise ValueError("its length is not the one that its header gives")
    limit = (1 << bits) - 1
    if not (-limit if delta else 0) <= low <= low + n - 1 <= limit:
        raise ValueError("its symbols are outside its code width")
    if not channels * tokens:
        return np.zeros((channels, tokens), np.uint8)
    tables = data[HEADER_BYTES : HEADER_BYTES + table_bytes]
    payload = data[HEADER_BYTES + table_bytes :]
    if name == Calibrated.name:
        if expected is None or expected.shape != (channels, n) or delta or low or tables:
            raise ValueError("it needs the profile that it was coded with")
        symbols = Calibrated.decode_with(expected, payload, tokens)
    else:
        symbols = MODELS[name].decode(tables, payload, channels, tokens, n)
    if not delta:  # the width of what a model can give back has been checked
        return (symbols + low).astype(np.uint8) if low else symbols.astype(np.uint8)
    codes = (symbols.astype(np.int32) + low).cumsum(axis=1, dtype=np.int32)
    if codes.min() < 0 or codes.max() > limit:
        raise ValueError("its codes are outside their width")
    return codes.astype(np.uint8)
