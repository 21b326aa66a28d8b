"""Tables as data.

A cell holds the raw number under its column's key; only the human formats round it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Row = dict[str, Any]


class Figure(NamedTuple):
    """A number and the key that says its unit, where a column holds several units."""

    value: Any
    key: str


@dataclass(frozen=True)
class Column:
    """A column: ``key`` names its cells, ``show`` writes one for people.

    Text may be folded where ``folds`` says so; nothing else is ever cut or wrapped. What is
    ``drawn`` is for people alone. Columns that say what a row is about have ``names``. What the
    numbers are is said by ``about``, a sentence at the foot of tables that show the column.
    """

    key: str
    header: str
    show: Callable[[Any], str] = str
    left: bool = False
    folds: bool = False
    drawn: bool = False
    names: bool = False
    about: str = ""


@dataclass(frozen=True)
class View:
    """A table with a title above, totals at its foot, a drawing and sentences below.

    Those of its rows and totals that are among ``answers`` answer what was asked, and are set in
    bold. The drawing is shown on wide terminals.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    totals: Sequence[Row] = ()
    notes: Sequence[str] = ()
    drawing: Sequence[str] = ()
    answers: Sequence[Row] = ()

    @property
    def naming(self) -> list[int]:
        """Places of the columns that say what a row is about: the first, and those that say so."""
        return [place for place, column in enumerate(self.columns) if column.names or not place]

    def legend(self, hidden: Collection[Column] = ()) -> list[str]:
        """Return what the columns that are not hidden count, as one note or none."""
        sentences = dict.fromkeys(c.about for c in self.columns if c.about and c not in hidden)
        return [" ".join(sentences)] if sentences else []

    def is_answer(self, row: Row) -> bool:
        """Return whether a row is itself among the answers."""
        return any(row is answer for answer in self.answers)

    def cells(self, row: Row) -> list[str]:
        """A row's cells as people read them; what is no text and not known is ""."""
        return [_shown(column, row[column.key]) for column in self.columns]


def _shown(column: Column, value: Any) -> str:
    return "" if value is None and column.show is str else column.show(value)
