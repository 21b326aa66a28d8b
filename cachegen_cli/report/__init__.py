"""Renderers: pure functions from a result to text."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from cachegen_cli.errors import UsageError
from cachegen_cli.report.columns import Column, Row
from cachegen_cli.report.views import view
from cachegen_cli.results import Result, to_json

_UNLIMITED = 10_000  # columns; a number is never cut, a terminal may wrap the line
_NARROWEST_TEXT = 16
_WIDE_TERMINAL = 120  # columns from which drawings are shown


def render(
    result: Result, format: str, *, wide: bool = False, width: int = 80, color: bool = False
) -> str:
    """A result as text that ends in a newline.

    Args:
        format: a key of `FORMATS`.
        wide: more columns, in formats for people.
        width: columns at which sentences of a table wrap; tables take the width they need.
        color: ANSI styles in a table.
    """
    if format not in FORMATS:
        raise UsageError(f"'{format}' is not a format", f"choose from {', '.join(FORMATS)}")
    return FORMATS[format](result, wide=wide, width=width, color=color)


def _table(result: Result, *, wide: bool, width: int, color: bool) -> str:
    from rich import box  # takes longer than all else that JSON needs
    from rich.console import Console
    from rich.table import Table

    shown = view(result, wide)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1), show_edge=False)
    for column in shown.columns:
        table.add_column(
            column.header,
            justify="left" if column.left else "right",
            no_wrap=not column.folds,
            overflow="fold",
        )
    for row in shown.rows:
        table.add_row(*_cells(shown.columns, row))
    if shown.totals:
        table.add_section()
    for row in shown.totals:
        table.add_row(*_cells(shown.columns, row), style="bold")
    console = Console(
        file=io.StringIO(),
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        width=_UNLIMITED,
    )
    _fit(table, shown.columns, width, console)
    console.print(table, highlight=False)
    body = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [line.rstrip() for line in body.rstrip("\n").split("\n")]
    if shown.drawing and (wide or width >= _WIDE_TERMINAL):
        lines += ["", *shown.drawing]
    return "\n".join([*_wrap(shown.title, width), "", *lines, *_paragraphs(shown.notes, width), ""])


def _fit(table: Any, columns: Sequence[Column], width: int, console: Any) -> None:
    """Make the column that folds give way; everything else takes the width it needs."""
    excess = console.measure(table).maximum - width
    for column, shown in zip(table.columns, columns, strict=True):
        if shown.folds and excess > 0:
            longest = max(len(str(cell)) for cell in column.cells)
            column.width = max(_NARROWEST_TEXT, longest - excess)


def _markdown(result: Result, *, wide: bool, width: int, color: bool) -> str:
    shown = view(result, wide)

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = [":--" if column.left else "--:" for column in shown.columns]
    rows = [_cells(shown.columns, row) for row in shown.rows]
    totals = [
        [f"**{cell}**" if cell else "" for cell in _cells(shown.columns, row)]
        for row in shown.totals
    ]
    table = [line([c.header for c in shown.columns]), line(rule), *map(line, rows + totals)]
    notes = [text for note in shown.notes for text in ("", note)]
    return "\n".join([shown.title, "", *table, *notes, ""])


def _csv(result: Result, *, wide: bool, width: int, color: bool) -> str:
    """Every column as raw numbers, totals last; empty cells where a column does not apply."""
    shown = view(result, True)
    keys = [column.key for column in shown.columns if not column.drawn]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(keys)
    for row in (*shown.rows, *shown.totals):
        writer.writerow([_raw(row[key]) for key in keys])
    return out.getvalue()


def _json(result: Result, *, wide: bool, width: int, color: bool) -> str:
    return to_json(result) + "\n"


def _cells(columns: Any, row: Row) -> list[str]:
    return [_cell(column, row[column.key]) for column in columns]


def _cell(column: Column, value: Any) -> str:
    return "" if value is None and column.show is str else column.show(value)


def _raw(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _wrap(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` columns; a number stays with its unit."""
    bound = re.sub(r"(?<=\d) (?=%|[kMGT]?B\b)", "\u00a0", text)
    lines = textwrap.wrap(bound, max(width, 20), break_on_hyphens=False, break_long_words=False)
    return [line.replace("\u00a0", " ") for line in lines]


def _paragraphs(notes: Any, width: int) -> list[str]:
    """Wrapped notes with a blank line between them."""
    return [line for note in notes for line in ("", *_wrap(note, width))]


FORMATS: dict[str, Callable[..., str]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
    "markdown": _markdown,
}
