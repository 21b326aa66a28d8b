"""Run with: uv run pytest tests/benchmarks --benchmark-only. Prints figures at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

_rows: list[tuple[str, str]] = []


@pytest.fixture
def report() -> Callable[[str, str], None]:
    """Adds a line to the table at the end."""
    return lambda name, text: _rows.append((name, text))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _rows:
        terminalreporter.section("figures")
        width = max(len(name) for name, _ in _rows)
        for name, text in _rows:
            terminalreporter.write_line(f"{name:<{width}}  {text}")
