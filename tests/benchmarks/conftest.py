"""Run with `make bench`. Prints a table of ratios and a list of figures at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

_ratios: list[tuple[str, str, str, str, str]] = []
_figures: list[tuple[str, str]] = []


@pytest.fixture
def report() -> Callable[[str, str], None]:
    """Adds a line to the figures."""
    return lambda name, text: _figures.append((name, text))


@pytest.fixture
def ratio() -> Callable[..., None]:
    """Adds a row: what, ours, the alternative's name, its figure, and how many times ours it is."""

    def add(what: str, ours: float, name: str, theirs: float, unit: str = "ns/element") -> None:
        _ratios.append((what, f"{ours:.3g} {unit}", name, f"{theirs:.3g} {unit}", theirs / ours))

    return add


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _ratios:
        terminalreporter.section("ratios: the alternative's figure over ours, in one run")
        rows = [("", "ours", "alternative", "its figure", "ratio")]
        rows += [(*row[:4], f"{row[4]:.3g}") for row in _ratios]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            terminalreporter.write_line("  ".join(cells).rstrip())
    if _figures:
        terminalreporter.section("figures")
        width = max(len(name) for name, _ in _figures)
        for name, text in _figures:
            terminalreporter.write_line(f"{name:<{width}}  {text}")
