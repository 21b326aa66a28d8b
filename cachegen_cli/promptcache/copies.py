"""Entries of a prompt-cache file that are copies of others, found without reading most of it."""

from __future__ import annotations

from collections.abc import Sequence

from cachegen_cli.promptcache.arrays import PIECE, Described
from cachegen_cli.promptcache.layouts import State

_HEAD = 1 << 12  # bytes that tell most apart


def copies_in(entries: Sequence[State]) -> list[tuple[int, int, int]]:
    """Find (entry, earlier entry with the same keys and values, bytes of them) in a header's."""
    earlier: dict[tuple[object, ...], list[tuple[int, list[Described]]]] = {}
    found = []
    for place, state in enumerate(entries):
        arrays = [x for x in (vars(state).get(n) for n in ("keys", "values")) if x is not None]
        if len(arrays) != 2 or not all(isinstance(x, Described) for x in arrays):
            continue
        key = (state.cls, *((x.shape, x.dtype, x.read(0, _HEAD)) for x in arrays))
        alike = earlier.setdefault(key, [])
        twin = next((p for p, other in alike if all(map(_same, arrays, other))), None)
        if twin is None:
            alike.append((place, arrays))
        else:
            found.append((place, twin, sum(x.nbytes for x in arrays)))
    return found


def _same(one: Described, other: Described) -> bool:
    return all(
        one.read(start, start + PIECE) == other.read(start, start + PIECE)
        for start in range(0, one.nbytes, PIECE)
    )
