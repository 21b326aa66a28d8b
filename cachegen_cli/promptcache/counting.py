"""Count how many rows of a file's entries are tokens, where its layout does not say so.

A  says nothing: 0.18.1 wrote growing buffers whole, whose other rows are zero; 0.19.0 cut them
B  does not say how many tokens a ChunkedKVCache has seen, and cuts it to as many rows, of which
   those are too many that fell out at the front
C  says everything

A full ring of layout A may have seen any number of tokens, and begin at any row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cachegen_cli.promptcache.arrays import rows_written
from cachegen_cli.promptcache.layouts import ROWS, BrokenCache, State
from cachegen_cli.results.run import Notice
from cachegen_cli.results.spans import Entry, spans

ROWS_UNKNOWN = "how many of its rows are tokens is not known"
POSITIONS_UNKNOWN = "the positions of its rows are not known"


@dataclass
class _Group:
    """Entries that are alike in class and size, and so have seen the same tokens.

    Attributes:
        stored: rows that the file holds of each.
        start: tokens that fell out at the front of a chunk.
        window: rows that a ring holds; 0 where the entry is none.
        ends: for each entry the rows up to its last that is not zero in keys or values.
    """

    cls: str
    stored: int
    start: int
    window: int
    places: list[Entry] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Rows up to the last that is not zero in some entry: a token's row may be zero in one."""
        return max(self.ends)

    @property
    def is_full(self) -> bool:
        """Return whether the file holds all tokens that were seen, and nothing else."""
        grows = self.stored < self.window if self.window else not self.start
        return grows and self.end == self.stored

    def fill(self, seen: int, start: int = 0, unknown: str = "") -> None:
        """Let all entries have seen so many tokens; where that is not known, at least these."""
        for state in self.states:
            own = vars(state)
            own |= {"offset": seen, "unknown": unknown}
            own |= {"start_position": start} if "start_position" in own else {}
            own |= {"_idx": seen} if self.window else {}
            if self.window and unknown:  # more rows than a ring's do not tell what it has seen
                own["offset"] = min(seen, self.window)

    def notice(self, code: str, what: str) -> Notice:
        """Say something of the entries."""
        many = "ies" if len(self.places) > 1 else "y"
        return Notice(code, f"cache entr{many} {spans(self.places)} ({self.cls}): {what}")


def settle(states: Sequence[State]) -> list[Notice]:
    """Fill in what entries have seen where a file leaves it out; return how that was found.

    Where it cannot be known, ``unknown`` of an entry is why, and all rows up to the last that is
    not zero stand in for its tokens.

    Raises:
        BrokenCache: keys and values of an entry are not of one shape.
    """
    seen: dict[int, Entry] = {}  # by how many tokens an entry has seen, the first such
    groups: dict[tuple[str, int, int, int], _Group] = {}
    for place, state in _leaves(states):
        own = vars(state)
        if own["offset"] is None and not isinstance(own["keys"], list):
            rows = own["keys"].shape[ROWS]
            kind = (state.cls, rows, own.get("start_position", 0), own.get("max_size", 0))
            group = groups.setdefault(kind, _Group(*kind))
            group.places.append(place)
            group.states.append(state)
            group.ends.append(rows_written((own["keys"], own["values"])))
        elif isinstance(own["offset"], int):
            seen.setdefault(own["offset"], place)
    for group in groups.values():
        if group.is_full:
            group.fill(group.stored)
            seen.setdefault(group.stored, group.places[0])
    return [_settled(group, seen) for group in groups.values() if not group.is_full]


def _leaves(states: Sequence[State], above: str = "") -> Iterator[tuple[Entry, State]]:
    """Entries, or parts of such, that hold keys and values."""
    for number, state in enumerate(states):
        place = f"{above}{number}" if above else number
        own: dict[str, Any] = vars(state)
        yield from _leaves(own.get("caches", ()), f"{place}/")
        if own.get("keys") is None:
            continue
        keys, values = own["keys"], own["values"]
        packed = isinstance(keys, list)
        for x, y in zip(keys, values, strict=True) if packed else [(keys, values)]:
            if len(x.shape) != 4 or len(y.shape) != 4 or x.shape[:3] != y.shape[:3]:
                raise BrokenCache(
                    f"entry {place}: keys {x.shape} and values {y.shape} are not of one entry"
                )
        yield place, state


def _settled(group: _Group, seen: Mapping[int, Entry]) -> Notice:
    """Settle entries that are not full, and say how."""
    end, start, stored = group.end, group.start, group.stored
    if group.window and end == stored:
        return _turned(group)
    # no row but a token's is written, and of those that were seen none is cut off
    fitting = [n for n in seen if max(stored if start else 0, start + end) <= n <= start + stored]
    if len(fitting) == 1 and not group.window:
        [n] = fitting
        group.fill(n, start)
        blank = f", of which the last {n - start - end} are zero" if n > start + end else ""
        how = f"{_counted(group, n)}, since entry {seen[n]} has seen as many{blank}"
        return group.notice("rows-by-another-entry", how)
    why = _doubt(group, seen)
    if why:
        group.fill(end or stored, unknown=ROWS_UNKNOWN)
        return group.notice(
            "rows-not-known",
            f"how many of {stored} rows are tokens is not known, since {why}; {end or stored} are "
            "read as tokens",
        )
    group.fill(start + end, start)
    first = min(group.ends)
    unequal = f" (in some entries from row {first} on)" if first < end else ""
    how = f"{_counted(group, start + end)}, by trailing zeros{unequal}"
    return group.notice("rows-by-trailing-zeros", how)


def _counted(group: _Group, seen: int) -> str:
    past = f", of {seen} seen" if group.start else ""
    return f"{seen - group.start} of {group.stored} rows are tokens{past}"


def _doubt(group: _Group, seen: Mapping[int, Entry]) -> str:
    """Why trailing zeros do not tell how many rows are tokens, or ""."""
    if not group.end:
        return "all of them are zero"
    if group.window and group.stored > group.window:
        return f"they end in zeros and a ring of {group.window} with more rows has none"
    if group.start and seen:
        others = ", ".join(map(str, sorted(seen)[:4]))
        return f"its first is token {group.start} and other entries have seen {others}"
    if group.start and group.start + group.end < group.stored:
        return f"its first is token {group.start} and more than {group.start + group.end} were seen"
    return ""


def _turned(group: _Group) -> Notice:
    """Settle full rings, of which nothing says what they have seen."""
    group.fill(group.stored, unknown=POSITIONS_UNKNOWN)
    begins = ", or at which row it begins" if group.stored == group.window else ""
    return group.notice(
        "position-not-known",
        f"layout A does not tell how many tokens a full ring of {group.window} has seen{begins}; "
        "its rows are read in the order of the file",
    )
