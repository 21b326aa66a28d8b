"""Tables of a page."""

from __future__ import annotations

from collections.abc import Sequence

from cachegen_cli.report.html.markup import element, framed, text
from cachegen_cli.report.table import View


def html_table(shown: View) -> str:
    """A view's table; it scrolls sideways where it is wider than the page."""
    places = [place for place, column in enumerate(shown.columns) if not column.drawn]
    left = {place for place in places if shown.columns[place].left}
    header = [shown.columns[place].header for place in places]
    rows = [[shown.cells(row)[place] for place in places] for row in shown.rows]
    totals = [[shown.cells(row)[place] for place in places] for row in shown.totals]
    at = {place: number for number, place in enumerate(places)}
    names, words = {at[p] for p in shown.naming}, {at[p] for p in left}
    bold = [shown.is_answer(row) for row in (*shown.rows, *shown.totals)]
    return table(header, rows, totals, names, words, bold)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    totals: Sequence[Sequence[str]] = (),
    names: set[int] | None = None,
    left: set[int] | None = None,
    bold: Sequence[bool] = (),
) -> str:
    """A table of texts.

    Args:
        names: columns that name rows, the first if it is not said.
        left: columns of words.
        bold: of each row and then of each total, whether it answers what was asked.
    """
    heads, words = names or {0}, left or set()

    def cells(row: Sequence[str], answers: bool) -> str:
        return element(
            "tr",
            *(
                element(
                    "th" if place in heads else "td",
                    text(cell),
                    scope="row" if place in heads else None,
                    class_="left" if place in words else None,
                )
                for place, cell in enumerate(row)
            ),
            class_="answer" if answers else None,
        )

    lines = [*map(cells, [*rows, *totals], bold or [False] * (len(rows) + len(totals)))]
    return framed(header, lines[: len(rows)], lines[len(rows) :], left=words)
