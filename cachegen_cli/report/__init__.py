"""Renderers: pure functions from a result to text."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from typing import Any

from cachegen_cli.errors import UsageError
from cachegen_cli.output import FOR_MACHINES, FORMATS
from cachegen_cli.report.choice import Choice, chosen
from cachegen_cli.report.table import Figure, View
from cachegen_cli.report.texttable import table_lines, text_width
from cachegen_cli.report.views import view
from cachegen_cli.results.schema import Result, to_json

_WIDE_TERMINAL = 120  # columns from which drawings are shown


def render(
    result: Result,
    format: str,
    *,
    wide: bool = False,
    width: int = 80,
    color: bool = False,
    fit: bool = False,
    choice: Choice = Choice(),  # noqa: B008  frozen
) -> str:
    """A result as text that ends in a newline.

    Args:
        format: one of `output.FORMATS`.
        wide: more columns, in formats for people.
        width: columns at which sentences of a table wrap.
        color: ANSI styles in a table.
        fit: whether the table itself keeps to ``width``, as on a terminal; else it takes the
            width it needs.
        choice: the rows that are shown; not for JSON and HTML, which hold everything.

    Raises:
        UsageError: a format that there is not, or a choice that it or the table does not know.
    """
    if format not in FORMATS:
        raise UsageError(f"'{format}' is not a format", f"choose from {', '.join(FORMATS)}")
    choice.check(format)
    if format == "json":
        return to_json(result) + "\n"
    if format == "html":
        from cachegen_cli.report.html import page

        return page(result, view(result, False), view(result, True))
    shown = chosen(view(result, wide or format in FOR_MACHINES), choice)
    if format == "table":
        return _table(shown, wide=wide, width=width, color=color, fit=fit)
    return _csv(shown) if format == "csv" else _markdown(shown)


def _table(shown: View, *, wide: bool, width: int, color: bool, fit: bool) -> str:
    lines, dropped = table_lines(shown, width, color=color, fit=fit, drop=not wide)
    notes = [*shown.notes, *shown.legend(dropped)]
    if dropped:
        left_out = ", ".join(column.header for column in dropped if column.header)
        notes.insert(0, f"Not shown in {width} columns: {left_out}.")
    if shown.drawing and (wide or width >= _WIDE_TERMINAL):
        needed = max(map(text_width, shown.drawing))
        if needed <= width or not fit:
            lines += ["", *shown.drawing]
        else:
            notes.insert(0, f"The plot takes {needed} columns.")
    return "\n".join([*_wrap(shown.title, width), "", *lines, *_paragraphs(notes, width), ""])


def _markdown(shown: View) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = [":--" if column.left else "--:" for column in shown.columns]
    rows = [
        [f"**{cell}**" if cell and shown.is_answer(row) else cell for cell in shown.cells(row)]
        for row in (*shown.rows, *shown.totals)
    ]
    table = [line([c.header for c in shown.columns]), line(rule), *map(line, rows)]
    notes = [text for note in (*shown.notes, *shown.legend()) for text in ("", note)]
    return "\n".join([shown.title, "", *table, *notes, ""])


def _csv(shown: View) -> str:
    """Every column as raw numbers, totals last; empty cells where a column does not apply."""
    keys = [column.key for column in shown.columns if not column.drawn]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(keys)
    for row in (*shown.rows, *shown.totals):
        writer.writerow([_raw(row[key]) for key in keys])
    return out.getvalue()


def _raw(value: Any) -> Any:
    if isinstance(value, Figure):
        return value.value
    return str(value).lower() if isinstance(value, bool) else value


def _wrap(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` columns; a number stays with its unit."""
    bound = re.sub(r"(?<=\d) (?=%|[kMGT]?B\b)", "\u00a0", text)
    lines = textwrap.wrap(bound, max(width, 20), break_on_hyphens=False, break_long_words=False)
    return [line.replace("\u00a0", " ") for line in lines]


def _paragraphs(notes: Any, width: int) -> list[str]:
    """Wrapped notes with a blank line between them."""
    return [line for note in notes for line in ("", *_wrap(note, width))]
