"""The cache entries that something is of, and what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Places:
    """The cache entries that a row is about; its text is for people."""

    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return spans(self.entries)

    @property
    def numbers(self) -> list[int]:
        """Indices in the cache, of "3/1" and "3#1" that of the entry they are part of."""
        return [index_of(entry) for entry in self.entries]


class Placed:
    """Belong to one cache entry, ``layer``, or of all ``layers`` that are coded as one."""

    layer: Entry
    layers: tuple[Entry, ...]

    @property
    def places(self) -> Places:
        """All of them; results of earlier versions name the first alone."""
        return Places(self.layers or (self.layer,))

    @property
    def label(self) -> str:
        """For people: "5" or "0-29"."""
        return str(self.places)
