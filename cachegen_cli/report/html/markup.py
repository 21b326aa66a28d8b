"""Elements of a page; what is not markup goes through `text`."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


def scrolling(table: str, name: str) -> str:
    """A table that scrolls sideways where it is wider than the page; ``name`` is read out."""
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=name)
