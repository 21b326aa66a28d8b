"""Elements of a page; what is not markup goes through `text`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from html import escape

VOID = ("br", "col", "rect", "circle", "line", "path")


def text(value: object) -> str:
    """Text with what means something in HTML escaped."""
    return escape(str(value), quote=True)


def element(name: str, *children: str, **attributes: object) -> str:
    """An element. ``class_`` is "class", other "_" are "-"; None leaves an attribute out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID and not children:
        return f"<{name}{given}/>" if name not in ("br", "col") else f"<{name}{given}>"
    return f"<{name}{given}>{''.join(children)}</{name}>"


def paragraphs(sentences: Iterable[str]) -> str:
    """A paragraph a sentence; a number stays with its unit."""
    bound = [re.sub(r"(?<=\d) (?=%|[kMGT]?B\b)", "\u00a0", sentence) for sentence in sentences]
    return "\n".join(element("p", text(sentence)) for sentence in bound)


def framed(
    header: Sequence[str],
    body: Sequence[str],
    foot: Sequence[str] = (),
    *,
    left: Collection[int] = (),
    class_: str | None = None,
) -> str:
    """A table of rows, which scrolls sideways where it is wider than the page.

    Args:
        header: texts; its first ones name the table for those who hear it.
        left: places of columns of words.
    """
    top = element(
        "tr",
        *(
            element("th", text(cell), scope="col", class_="left" if place in left else None)
            for place, cell in enumerate(header)
        ),
    )
    parts = [element("thead", top), element("tbody", *body)]
    parts += [element("tfoot", *foot)] if foot else []
    table = element("table", *parts, class_=class_)
    named = " and ".join(filter(None, header[:4]))
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=named)
