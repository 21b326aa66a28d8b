"""Bars in a cell."""

from __future__ import annotations

from collections.abc import Sequence

from cachegen_cli.report.table import Row

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(value: float | None, largest: float, columns: int) -> str:
    """A bar in eighths of a column, ``columns`` long for the largest value."""
    eighths = round(8 * columns * max(value or 0.0, 0.0) / largest) if largest > 0 else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def with_bars(rows: Sequence[Row], columns: int = 8) -> list[Row]:
    """The rows with bars for coded bytes and their saving, each beside the largest of all."""
    most = {key: max((row[key] or 0 for row in rows), default=0) for key in _BARS}
    return [
        row | {name: bar(row[key], most[key], columns) for key, name in _BARS.items()}
        for row in rows
    ]


_BARS = {"coded_bytes": "coded_bar", "coded_saving": "saving_bar"}
NO_BARS = dict.fromkeys(_BARS.values(), "")
