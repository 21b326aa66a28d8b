"""Several symbols coded as one: the coder's work is by symbol, not by bit.

k neighbours of a channel become one symbol of n^k <= 256 values, whose probability is the
product that its parts have. A stream costs the same bits and takes 1/k of the steps.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Symbols = npt.NDArray[np.integer[Any]]

MAX_VALUES = 256
SIZES = (2, 3, 4, 5, 7, 17)  # alphabets from which on blocks are shorter


def block_length(n_symbols: int) -> int:
    """The largest k with n^k <= 256, at least 1."""
    k = 1
    while n_symbols ** (k + 1) <= MAX_VALUES:
        k += 1
    return k


def split(symbols: Symbols, n_symbols: int) -> tuple[Symbols, Symbols]:
    """Symbols [C, T] as blocks [C, T // k] and the T mod k that are left over."""
    k = block_length(n_symbols)
    whole = symbols.shape[1] // k * k
    parts = symbols[:, :whole].reshape(len(symbols), -1, k)
    blocks = parts[:, :, 0].astype(np.int32)
    for place in range(1, k):  # the first symbol is the most significant
        blocks *= n_symbols
        blocks += parts[:, :, place]
    return blocks, symbols[:, whole:]


def join(blocks: Symbols, rest: Symbols, n_symbols: int) -> Symbols:
    """The inverse of `split`."""
    k = block_length(n_symbols)
    whole = blocks.shape[1] * k
    found = np.empty((len(blocks), whole + rest.shape[1]), np.int16)
    blocks = np.ascontiguousarray(blocks)
    for place, values in enumerate(_parts(n_symbols)):
        found[:, place:whole:k] = values.take(blocks)
    found[:, whole:] = rest
    return found


@cache
def _parts(n_symbols: int) -> npt.NDArray[np.int16]:
    """The symbols [k, n^k] of each block, by place."""
    k = block_length(n_symbols)
    values = np.arange(n_symbols**k)
    places = [values // n_symbols**place % n_symbols for place in reversed(range(k))]
    return np.array(places, np.int16)


def block_frequencies(first: Symbols, following: Symbols) -> npt.NDArray[np.float64]:
    """Frequencies of blocks whose first symbol has ``first`` [n] and whose next ones have
    the row of ``following`` [n, n] that their predecessor names.

    Products and quotients of float64 are the same on every machine.
    """
    n = len(first)
    following = following.astype(np.float64)
    chances = following / np.maximum(following.sum(axis=1, keepdims=True), 1)
    found = first.astype(np.float64)
    for _ in range(block_length(n) - 1):
        found = (found.reshape(-1, n)[:, :, None] * chances).ravel()
    return found
