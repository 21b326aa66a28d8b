"""The arithmetic coder that CacheGen ships, bit by bit, for checking predicted sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def cdf(codes: Sequence[int], bins: int) -> np.ndarray:
    """[bins + 1] cumulative table of a channel's codes."""
    below = np.array([sum(code < i for code in codes) for i in range(bins + 1)])
    return (65535 - bins) * below // len(codes) + np.arange(bins + 1)


def encode(codes: Sequence[int], table: np.ndarray) -> bytes:
    """One stream of a channel's codes."""
    low, high, pending, bits = 0, 0xFFFFFFFF, 0, []

    def emit(bit: int) -> None:
        nonlocal pending
        bits.extend([bit] + [1 - bit] * pending)
        pending = 0

    last = len(table) - 2
    for code in codes:
        span = high - low + 1
        top = 0x10000 if code == last else int(table[code + 1])
        high = low - 1 + (span * top >> 16)
        low += span * int(table[code]) >> 16
        while True:
            if high < 1 << 31:
                emit(0)
            elif low >= 1 << 31:
                emit(1)
            elif low >= 1 << 30 and high < 3 << 30:
                pending += 1
                low = (low << 1) & 0x7FFFFFFF
                high = ((high << 1) | 0x80000001) & 0xFFFFFFFF
                continue
            else:
                break
            low = (low << 1) & 0xFFFFFFFF
            high = ((high << 1) | 1) & 0xFFFFFFFF
    pending += 1
    emit(0 if low < 1 << 30 else 1)
    return np.packbits(bits).tobytes()
