"""A table as lines of text, for terminals and pipes.

Rich would draw it too, but takes longer to import than `inspect` may to answer.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from cachegen_cli.report.table import Column, View

_GAP = "  "
_NARROWEST_TEXT = 16  # columns that text which folds keeps at least
_DROP_BELOW = 80  # terminals narrower than this lose columns of a default view
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def table_lines(
    shown: View, width: int, *, color: bool, fit: bool, drop: bool
) -> tuple[list[str], list[Column]]:
    """(header, rule, rows and totals; the columns that were dropped).

    Columns that fold give way to ``width`` first.

    Args:
        color: whether header and answers are bold by ANSI sequences.
        fit: keep to ``width``: what is too wide is set as several tables one below the
            other, each with the columns that name its rows.
        drop: with ``fit``, leave columns out from the right instead where ``width`` is below 80.
    """
    header = [column.header for column in shown.columns]
    rows, totals = (
        [_Line(shown.cells(row), shown.is_answer(row)) for row in some]
        for some in (shown.rows, shown.totals)
    )
    texts = [header, *(line.cells for line in rows + totals)]
    widths = [max(map(text_width, cells)) for cells in zip(*texts, strict=True)]
    _fold(widths, shown.columns, width)
    parts = _parts(widths, shown.naming, width) if fit else [list(range(len(widths)))]
    dropped: list[Column] = []
    if drop and width < _DROP_BELOW:
        dropped = [column for place, column in enumerate(shown.columns) if place not in parts[0]]
        del parts[1:]
    lines: list[str] = []
    for part in parts:
        top, body, feet = (
            [_Line([line.cells[place] for place in part], line.bold) for line in some]
            for some in ([_Line(header, True)], rows, totals)
        )
        columns, room = [shown.columns[place] for place in part], [widths[place] for place in part]
        lines += [""] if lines else []
        lines += _lines(top, body, feet, columns, room, color)
    return lines, dropped


class _Line(NamedTuple):
    """The cells of a header, row or total, and whether they are bold where there is color."""

    cells: list[str]
    bold: bool


def _lines(
    header: list[_Line],
    rows: list[_Line],
    totals: list[_Line],
    columns: Sequence[Column],
    widths: Sequence[int],
    color: bool,
) -> list[str]:
    """One table."""

    def drawn(some: list[_Line]) -> list[str]:
        return [
            f"{_BOLD}{text}{_PLAIN}" if line.bold and color else text
            for line in some
            for text in _row(line.cells, columns, widths)
        ]

    feet = drawn(totals)
    return [*drawn(header), "─" * _wide(widths), *drawn(rows), *([""] if feet else []), *feet]


def text_width(text: str) -> int:
    """Columns of a terminal that a text takes: two for wide characters, none for accents."""
    if text.isascii():
        return len(text)
    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def _wide(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _fold(widths: list[int], columns: Sequence[Column], width: int) -> None:
    excess = _wide(widths) - width
    for place, column in enumerate(columns):
        if column.folds and excess > 0:
            given = min(excess, max(0, widths[place] - _NARROWEST_TEXT))
            widths[place] -= given
            excess -= given


def _parts(widths: Sequence[int], names: Sequence[int], width: int) -> list[list[int]]:
    """Places of the columns that stand side by side, each time after those that name rows."""
    parts = [list(names)]
    for place in range(len(widths)):
        if place in names:
            continue
        here = parts[-1]
        if len(here) > len(names) and _wide([widths[p] for p in (*here, place)]) > width:
            parts.append(list(names))
        parts[-1].append(place)
    return [sorted(part) for part in parts]


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """One line, or several where text folds."""
    parts = [
        textwrap.wrap(cell, room) or [""] if text_width(cell) > room else [cell]
        for cell, room in zip(cells, widths, strict=True)
    ]
    lines = []
    for number in range(max(map(len, parts))):
        here = [part[number] if number < len(part) else "" for part in parts]
        line = _GAP.join(
            _aligned(text, room, column.left)
            for text, room, column in zip(here, widths, columns, strict=True)
        )
        lines.append(line.rstrip())
    return lines


def _aligned(text: str, room: int, left: bool) -> str:
    blank = " " * (room - text_width(text))
    return text + blank if left else blank + text
