"""A scatter plot in text."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import NamedTuple

_WIDTH, _HEIGHT = 60, 12


class Point(NamedTuple):
    """A mark at x and, on a logarithmic scale, y."""

    x: float
    y: float
    mark: str


def scatter(points: Sequence[Point], x_name: str, y_name: str) -> list[str]:
    """Lines of a plot; y is logarithmic, so points at 0 are left out. Later marks win."""
    shown = [point for point in points if point.y > 0]
    if len(shown) < 2:
        return []
    xs, ys = [point.x for point in shown], [log10(point.y) for point in shown]
    x_low, x_span = floor(min(xs)), max(max(xs) - floor(min(xs)), 1e-9)
    y_low, y_span = min(ys), max(max(ys) - min(ys), 1e-9)
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for point, x, y in zip(shown, xs, ys, strict=True):
        column = round((x - x_low) / x_span * (_WIDTH - 1))
        row = round((max(ys) - y) / y_span * (_HEIGHT - 1))
        grid[row][column] = point.mark
    lines = [y_name]
    for row, cells in enumerate(grid):
        value = 10 ** (y_low + y_span * (_HEIGHT - 1 - row) / (_HEIGHT - 1))
        label = f"{value:8.2g}" if row % 4 == 3 or row == 0 else " " * 8
        lines.append(f"{label} │{''.join(cells)}".rstrip())
    lines.append(" " * 8 + " └" + "─" * _WIDTH)
    ticks = [f"{x_low + x_span * part / 4:.1f}" for part in range(5)]
    axis = [" "] * (_WIDTH + 14)
    for part, tick in enumerate(ticks):
        start = 10 + round(part / 4 * (_WIDTH - 1)) - (1 if part else 0)
        axis[start : start + len(tick)] = tick
    return [*lines, "".join(axis).rstrip() + f"  {x_name}"]
