"""Entries of a prompt-cache file that are copies of others, found without reading most of it."""

from __future__ import annotations

from pathlib import Path

from cachegen_cli.promptcache.header import Described, read_header

_HEAD, _PIECE = 1 << 12, 1 << 20  # bytes that tell most apart; bytes compared at once


def copies_in(path: Path) -> list[tuple[int, int, int]]:
    """(entry, earlier entry with the same keys and values, bytes of them) of a file.

    Raises:
        InputError: it is no prompt cache.
    """
    _, _, states, _ = read_header(path)
    earlier: dict[tuple[object, ...], list[tuple[int, list[Described]]]] = {}
    found = []
    for place, state in enumerate(states):
        arrays = [x for x in (vars(state).get(n) for n in ("keys", "values")) if x is not None]
        if len(arrays) != 2 or not all(isinstance(x, Described) for x in arrays):
            continue
        key = (state.cls, *((x.shape, x.dtype, _bytes(x, 0, _HEAD)) for x in arrays))
        alike = earlier.setdefault(key, [])
        twin = next((p for p, other in alike if all(map(_same, arrays, other))), None)
        if twin is None:
            alike.append((place, arrays))
        else:
            found.append((place, twin, sum(x.nbytes for x in arrays)))
    return found


def _same(one: Described, other: Described) -> bool:
    return all(
        _bytes(one, start, _PIECE) == _bytes(other, start, _PIECE)
        for start in range(0, one.nbytes, _PIECE)
    )


def _bytes(array: Described, start: int, n: int) -> bytes:
    with array.path.open("rb") as file:
        file.seek(array.offset + start)
        return file.read(min(n, array.nbytes - start))
