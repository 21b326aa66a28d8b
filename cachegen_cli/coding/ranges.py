"""constriction's range coder, and how long its streams get."""

from __future__ import annotations

from math import ceil
from typing import Any

import constriction
import numpy as np
import numpy.typing as npt

WORD = 4  # bytes; a stream is a whole number of 32-bit words
SLACK_BITS = 64  # of the last words, and of probabilities rounded to 24 bits
# A range r is cut to a multiple of 2^24 for each symbol, which loses half of 2^24 / r of it. With
# log2 r anywhere from 32 to 64 alike that is 1.3e-4 bits; measured are 1.1e-4.
_LOST_BITS = 1.5e-4

Integers = npt.NDArray[np.integer[Any]]


def encoder() -> Any:
    """An empty range encoder."""
    return constriction.stream.queue.RangeEncoder()


def decoder(data: bytes) -> Any:
    """A range decoder of `words`' bytes."""
    return constriction.stream.queue.RangeDecoder(np.frombuffer(data, "<u4").astype(np.uint32))


def words(coder: Any) -> bytes:
    """An encoder's stream, little-endian."""
    found: bytes = coder.get_compressed().astype("<u4").tobytes()
    return found


def categorical(frequencies: npt.NDArray[Any]) -> Any:
    """The model of frequencies: integers, or products of integers.

    Given as float64 counts, not normalized: constriction's rounding depends on the dtype
    and scale of its input, and this form is the one that files rely on.
    """
    return constriction.stream.model.Categorical(frequencies.astype(np.float64), perfect=False)


def code_length(counts: Integers, frequencies: Integers) -> float:
    """Bits of symbols with counts [..., K] under frequencies [..., K], 0 where a count is 0."""
    used = counts > 0
    per_symbol = np.log2(np.where(used, frequencies, 1))
    total = np.log2(np.maximum(frequencies.sum(axis=-1), 1))
    return float((counts.sum(axis=-1) * total).sum() - (counts * per_symbol).sum())


def stream_bytes(bits: float, n_symbols: float) -> int:
    """Upper bound of the bytes of a stream of so many bits of information and so many symbols."""
    bits += n_symbols * _LOST_BITS
    return ceil((bits * (1 + 2e-6) + SLACK_BITS) / 32) * WORD if bits else WORD
