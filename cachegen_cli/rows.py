"""What the rows of a cache entry are: which tokens, at which positions, how rotated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachegen_cli.coding.repeats import Repeats, anonymous, repeats
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.results.spans import Entry
from cachegen_cli.rope import Rotary, positions_of

Looked = Callable[[Entry], Rotary | str]


def without_model(layer: Entry) -> str:
    """Why nothing is known of a rotation where there is no model."""
    return "there is no model that says how keys were rotated"


@dataclass(frozen=True)
class Context:
    """What is known of a text beside its cache.

    Attributes:
        tokens: numbers that are equal where tokens are; empty where they are not known.
        rotary: how the keys of a cache entry were rotated, or why that is not known.
    """

    tokens: tuple[int, ...] = ()
    rotary: Looked = without_model


@dataclass(frozen=True)
class Rows:
    """The rows of an entry, or some of them.

    Attributes:
        tokens: [rows] numbers that are equal where tokens are; all different where unknown.
        positions: [rows] in the text.
    """

    tokens: tuple[int, ...]
    positions: NDArray[Any]

    @property
    def repeats(self) -> Repeats:
        """Where the rows' tokens repeat."""
        return _repeats(self.tokens)

    def cut(self, first: int, last: int) -> Rows:
        """Without the first and last rows."""
        end = len(self.tokens) - last
        return Rows(self.tokens[first:end], self.positions[first:end])


def rows_of(kv: LayerKV, tokens: Sequence[int]) -> Rows:
    """The rows of an entry of a text; ``tokens`` are all that it saw, or none."""
    return rows_at(kv.keys.shape[1], kv.tokens_seen, kv.window, kv.sinks, tokens)


def rows_at(n: int, tokens_seen: int, window: int, sinks: int, tokens: Sequence[int]) -> Rows:
    """The same by numbers, as in `LayerKV`."""
    return _rows_at(n, tokens_seen, window, sinks, tuple(tokens))


@lru_cache(maxsize=4)
def _rows_at(n: int, tokens_seen: int, window: int, sinks: int, tokens: tuple[int, ...]) -> Rows:
    positions = positions_of(n, tokens_seen, window, sinks)
    if len(tokens) != tokens_seen:
        return Rows(tuple(range(n)), positions)
    return Rows(tuple(anonymous([tokens[p] for p in positions.tolist()])), positions)


@lru_cache(maxsize=16)
def _repeats(tokens: tuple[int, ...]) -> Repeats:
    return repeats(tokens)


def no_rows(n: int) -> Rows:
    """Rows of which nothing is known."""
    return Rows(tuple(range(n)), np.arange(n, dtype=np.int32))
