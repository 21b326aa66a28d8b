"""Which rows of a table are shown, and in which order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cachegen_cli.errors import UsageError
from cachegen_cli.output import WHOLE
from cachegen_cli.report.table import Column, Row, View
from cachegen_cli.results.spans import Places
from cachegen_cli.wording import counted


@dataclass(frozen=True)
class Choice:
    """What is asked of a table's rows.

    Attributes:
        sort: a column's key or header, largest first; "-" before it smallest first.
        layers: of cache entries or layers, None for all.
        top: how many rows, None for all.
    """

    sort: str = ""
    layers: frozenset[int] | None = None
    top: int | None = None

    def check(self, format: str) -> None:
        """Raise UsageError where rows are chosen for a format that holds every row."""
        if self.option and format in WHOLE:
            raise UsageError(f"{self.option} is for tables; {format} holds every row", "drop it")

    @property
    def option(self) -> str:
        """The first option that was given, or ""."""
        if self.sort:
            return "--sort"
        return "--layers" if self.layers is not None else "--top" if self.top is not None else ""


def chosen(shown: View, choice: Choice) -> View:
    """The view with the rows that are asked for; totals stay those of all rows.

    Raises:
        UsageError: a column that the table does not have, or layers in a table without them.
    """
    if not choice.option:
        return shown
    rows = list(shown.rows)
    if choice.layers is not None:
        rows = _of_layers(shown, choice.layers)
    if choice.sort:
        rows = _sorted(shown, choice.sort, rows)
    rows = rows[: choice.top]
    are = "is" if len(rows) == 1 else "are"
    said = f"{len(rows)} of {counted(len(shown.rows), 'row')} {are} shown"
    said += (
        "; the foot is over all of them." if shown.totals and len(rows) < len(shown.rows) else "."
    )
    return replace(shown, rows=rows, notes=(said, *shown.notes))


def _of_layers(shown: View, layers: frozenset[int]) -> list[Row]:
    numbers = [_numbers_of(shown, row) for row in shown.rows]
    known = set().union(*numbers)
    if not known:
        raise UsageError("the rows of this table are not layers", "drop --layers")
    if missing := layers - known:
        raise UsageError(
            f"there is no layer {min(missing)} in this table",
            f"layers go from {min(known)} to {max(known)}",
        )
    return [row for row, own in zip(shown.rows, numbers, strict=True) if layers & own]


def _numbers_of(shown: View, row: Row) -> set[int]:
    """Return the indices of the cache entries that a row is about."""
    cells = (row[column.key] for column in shown.columns)
    return {number for cell in cells if isinstance(cell, Places) for number in cell.numbers}


def layers_named(text: str) -> frozenset[int]:
    """The numbers of "0-5,20".

    Raises:
        UsageError: it is no such list.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        matched = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if not matched:
            raise UsageError(
                f"'{text}' names no layers", "write numbers and ranges: --layers 0-5,20"
            )
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if first > last:
            raise UsageError(f"'{first}-{last}' runs backwards", f"write {last}-{first}")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def _sorted(shown: View, sort: str, rows: Sequence[Row]) -> list[Row]:
    column = _column(shown.columns, sort.removeprefix("-"))
    known = [row for row in rows if row[column.key] is not None]
    rest = [row for row in rows if row[column.key] is None]
    largest_first = not sort.startswith("-")
    try:
        ordered = sorted(known, key=lambda row: _order(row[column.key]), reverse=largest_first)
    except TypeError:  # a number in one row, a list in another
        ordered = sorted(known, key=lambda row: str(row[column.key]), reverse=largest_first)
    return ordered + rest


def _order(value: Any) -> Any:
    """Return what a cell is sorted by: places by their numbers, then parts of an entry by name."""
    return (value.numbers, [*map(str, value.entries)]) if isinstance(value, Places) else value


def _column(columns: Sequence[Column], name: str) -> Column:
    found = [c for c in columns if c.key == name] or [c for c in columns if c.header == name]
    if len(found) != 1:
        keys = ", ".join(c.key for c in columns if not c.drawn)
        which = "has no column" if not found else "has several columns"
        raise UsageError(f"the table {which} '{name}'", f"sort by one of {keys}")
    return found[0]
