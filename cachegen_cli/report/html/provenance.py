"""Where a page's figures come from: settings, versions, and how to get them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cachegen_cli.report.common import common_settings
from cachegen_cli.report.html.markup import element, text
from cachegen_cli.results.schema import Result

_SHOWN = ("tool", "model", "prompt", "settings", "target", "timing")


def provenance(result: Result) -> str:
    """Settings, versions and the command."""
    data = result.to_json()
    data["settings"] = common_settings(data)
    pairs = [pair for key in _SHOWN if data.get(key) for pair in _leaves(data[key], key)]
    command = data.get("command")
    again = (
        element("pre", element("code", text(command)))
        if command
        else element("p", "The command is not known: the result was made in Python, or by an "
                     "earlier version.")
    )  # fmt: skip
    rows = [element("div", element("dt", text(k)), element("dd", text(v))) for k, v in pairs]
    return element(
        "section",
        element("h2", "To get this again"),
        again,
        element("h2", "Settings and versions"),
        element("dl", *rows, class_="settings"),
    )


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}")
    elif value not in (None, "", []):
        shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        shown = {"True": "yes", "False": "no"}.get(shown, shown)
        yield path, shown if len(shown) <= 300 else f"{shown[:300]}…"
