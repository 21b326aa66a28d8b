"""A result as one page that needs nothing else: no network, no library."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from cachegen_cli.report.html.embedding import embedded
from cachegen_cli.report.html.markup import element, paragraphs, text
from cachegen_cli.report.html.panels import Headline, Panel, panels_of
from cachegen_cli.report.html.provenance import provenance
from cachegen_cli.report.html.tables import html_table
from cachegen_cli.report.table import View
from cachegen_cli.results.schema import Result


def page(result: Result, shown: View, full: View) -> str:
    """A page: headline figures, charts with their tables, every figure, where they come from.

    Args:
        shown: the default view, whose sentences say what was found.
        full: the wide view, whose table holds everything.
    """
    here = files("cachegen_cli.report.html")
    style, script = ((here / name).read_text("utf-8") for name in ("page.css", "page.js"))
    head, panels = panels_of(result)
    body = [
        element("h1", text(f"cachegen {result.kind}")),
        element("p", text(shown.title), class_="title"),
        _headline(head),
        paragraphs(shown.notes[:1]),
        *map(_panel, panels),
        _panel(_every_figure(full)),
        element("section", element("h2", "Notes"), paragraphs([*full.notes[1:], *full.legend()])),
        provenance(result),
    ]
    return _PAGE.format(
        title=text(f"cachegen {result.kind}: {shown.title}"),
        style=style,
        script=script,
        body="\n".join(filter(None, body)),
        result=embedded(result),
    )


def _headline(figures: Sequence[Headline]) -> str:
    """Figures as tiles."""
    tiles = [
        element("div", element("dt", text(name)), element("dd", element("b", text(figure)),
                element("span", text(against))))
        for figure, name, against in figures
    ]  # fmt: skip
    return element("dl", *tiles, class_="headline") if tiles else ""


def _every_figure(full: View) -> Panel:
    rows = len(full.rows) + len(full.totals)
    if rows <= _LONG:
        return Panel("Every figure", html_table(full), "")
    return Panel("Every figure", "", f"{rows:,} rows, folded.", html_table(full))


def _panel(panel: Panel) -> str:
    parts = [element("h2", text(panel.title)), element("p", text(panel.about)), panel.body]
    if panel.table:
        parts.append(element("details", element("summary", "Figures"), panel.table))
    return element("section", *parts)


_LONG = 200  # rows, from which a table is folded
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<nav><button type="button" id="theme" hidden>Dark</button>
<button type="button" id="save" hidden>Save the JSON</button></nav>
<main>
{body}
</main>
{result}
<script>
{script}</script>
</body>
</html>
"""
