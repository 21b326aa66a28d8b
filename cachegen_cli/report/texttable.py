"""A table as lines of text, for terminals and pipes.

Rich would draw it too, but takes longer to import than `inspect` may to answer.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from unicodedata import combining, east_asian_width

from cachegen_cli.report.table import Column, View

_GAP = "  "
_NARROWEST_TEXT = 16  # columns that text which folds keeps at least
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def table_lines(shown: View, width: int, color: bool) -> list[str]:
    """Header, rule, rows and totals; only columns that fold give way to ``width``.

    Args:
        color: whether header and totals are bold by ANSI sequences.
    """
    header = [column.header for column in shown.columns]
    rows = [shown.cells(row) for row in shown.rows]
    totals = [shown.cells(row) for row in shown.totals]
    widths = [max(map(text_width, cells)) for cells in zip(header, *rows, *totals, strict=True)]
    _fit(widths, shown.columns, width)

    def drawn(cells: Sequence[str], bold: bool = False) -> list[str]:
        lines = _row(cells, shown.columns, widths)
        return [f"{_BOLD}{line}{_PLAIN}" for line in lines] if bold and color else lines

    rule = "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    body = [line for row in rows for line in drawn(row)]
    feet = [line for row in totals for line in drawn(row, bold=True)]
    return [*drawn(header, bold=True), rule, *body, *([""] if feet else []), *feet]


def text_width(text: str) -> int:
    """Columns of a terminal that a text takes: two for wide characters, none for accents."""
    if text.isascii():
        return len(text)
    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def _fit(widths: list[int], columns: Sequence[Column], width: int) -> None:
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    for place, column in enumerate(columns):
        if column.folds and excess > 0:
            given = min(excess, max(0, widths[place] - _NARROWEST_TEXT))
            widths[place] -= given
            excess -= given


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
