"""Numbers of layers for people."""

from __future__ import annotations

from collections.abc import Sequence

Entry = int | str
"""Place of an entry in a cache: 3, or "3/1" in a CacheList, or "3#1" of a batch."""

_MOST_RUNS = 2


def index_of(place: Entry) -> int:
    """The index in the cache of an entry, or of the one that it is part of."""
    return int(str(place).split("/")[0].split("#")[0])


def shifted(place: Entry, by: int) -> Entry:
    """A place in a cache whose first entry is not the model's."""
    if isinstance(place, int):
        return place + by
    index = index_of(place)
    return f"{index + by}{place[len(str(index)) :]}"


def spans(places: Sequence[Entry]) -> str:
    """ "5", "0-29", "0-4,6", or "25 of 0-28" where that would be long; "3/1" for parts."""
    numbers = [place for place in places if isinstance(place, int)]
    if len(numbers) != len(places):
        return str(places[0]) if len(places) == 1 else f"{len(places)} from {places[0]}"
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    if len(runs) > _MOST_RUNS:
        return f"{len(numbers)} of {min(numbers)}-{max(numbers)}"
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
