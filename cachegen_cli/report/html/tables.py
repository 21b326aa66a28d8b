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
    return table(header, rows, totals, {at[p] for p in shown.naming}, {at[p] for p in left})


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    totals: Sequence[Sequence[str]] = (),
    names: set[int] | None = None,
    left: set[int] | None = None,
) -> str:
    """A table of texts.

    Args:
        names: columns that name rows, the first if it is not said.
        left: columns of words.
    """
    heads, words = names or {0}, left or set()

    def cells(row: Sequence[str]) -> str:
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
        )

    return framed(header, [*map(cells, rows)], [*map(cells, totals)], left=words)
