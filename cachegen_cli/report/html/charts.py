"""Charts of a page: bars and heat maps as tables, curves and histograms as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import NamedTuple

from cachegen_cli.report.html.markup import element, framed, text
from cachegen_cli.wording import counted

_HEAT_LEVELS = 10


class Bar(NamedTuple):
    """A row of bars: what it is of, its parts as (kind, size), and their sum for people."""

    names: tuple[str, ...]
    parts: tuple[tuple[str, float], ...]
    figure: str


class Dot(NamedTuple):
    """A point of a curve; ``best`` where nothing has both less x and less y; ``error`` of y."""

    x: float
    y: float
    label: str
    best: bool = False
    error: float = 0.0


def bars(header: Sequence[str], rows: Sequence[Bar], kinds: Sequence[str]) -> str:
    """A table whose last column but one holds stacked bars, beside the longest of all.

    Args:
        header: of the names, of the bars and of the figure.
        kinds: of the parts, in the order of the legend.
    """
    longest = max((sum(size for _, size in row.parts) for row in rows), default=0) or 1
    numbers = {kind: number for number, kind in enumerate(kinds)}
    body = []
    for row in rows:
        parts = [
            element(
                "i",
                class_=f"k{numbers[kind]}",
                style=f"width:{100 * size / longest:.2f}%",
                title=f"{kind} {size:,.10g}",
            )
            for kind, size in row.parts
            if size > 0
        ]
        cells = [element("th", text(name), scope="row") for name in row.names]
        cells += [element("td", *parts, class_="bar"), element("td", text(row.figure))]
        body.append(element("tr", *cells))
    legend = [
        element("span", element("i", class_=f"k{number}"), text(kind))
        for number, kind in enumerate(kinds)
    ]
    return element("p", *legend, class_="legend") + framed(header, body, class_="bars")


def heat(header: Sequence[str], rows: Sequence[tuple[tuple[str, ...], Sequence[float]]]) -> str:
    """A table of numbers, darker where they are larger.

    Args:
        header: of the names and of the numbers' columns.
        rows: names, and numbers.
    """
    known = [value for _, values in rows for value in values]
    low, high = min(known, default=0.0), max(known, default=0.0)
    span = high - low or 1.0
    body = []
    for names, values in rows:
        cells = [element("th", text(name), scope="row") for name in names]
        for value in values:
            level = min(int(_HEAT_LEVELS * (value - low) / span), _HEAT_LEVELS - 1)
            cells.append(element("td", f"{value:.2f}", class_=f"h{level}"))
        body.append(element("tr", *cells))
    scale = [element("i", class_=f"h{level}") for level in range(_HEAT_LEVELS)]
    legend = element("p", f"{low:.2f} ", *scale, f" {high:.2f}", class_="legend")
    return legend + framed(header, body, class_="heat")


def histogram(counts: Sequence[int], first: int, step: int, name: str) -> str:
    """Counts of neighbouring codes as one filled line."""
    most = max(counts, default=0) or 1
    last = first + step * len(counts) - 1
    line = "M0 100" + "".join(f"V{round(100 - 100 * count / most)}h1" for count in counts) + "V100z"
    shape = element(
        "svg",
        element("title", text(f"How often each code of {name} occurs")),
        element("path", d=line),
        viewBox=f"0 0 {len(counts)} 100",
        preserveAspectRatio="none",
        role="img",
        class_="histogram",
    )
    ends = (first, f"most often {counted(most, 'time')}", last)
    axis = element("p", *(element("span", text(end)) for end in ends), class_="axis")
    return shape + axis


_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM, _TOP = 640, 400, 72, 64, 60, 14
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def curves(series: Sequence[tuple[str, Sequence[Dot]]], across: str, up: str) -> str:
    """Curves with x linear and y logarithmic; the best points of all are full, others hollow."""
    dots = [dot for _, some in series for dot in some if dot.y > 0]
    if not dots:
        return element("p", "There is nothing to draw: no point has a loss.")
    low_x, high_x = floor(min(d.x for d in dots)), ceil(max(d.x for d in dots) + 0.01)
    low_y = floor(log10(min(d.y for d in dots)))
    high_y = max(ceil(log10(max(d.y for d in dots))), low_y + 1)

    def at(dot: Dot) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * (dot.x - low_x) / (high_x - low_x)
        share = (log10(dot.y) - low_y) / (high_y - low_y)
        return x, _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * share

    parts = [element("title", text(f"{up} against {across}"))]
    for decade in range(low_y, high_y + 1):
        _, y = at(Dot(low_x, 10.0**decade, ""))
        parts.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}"))
        power = f"10{str(decade).translate(_RAISED)}"
        parts.append(element("text", power, x=_LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end"))
    step = max(1, ceil((high_x - low_x) / 10))
    for tick in range(low_x, high_x + 1, step):
        x, _ = at(Dot(tick, 10.0**low_y, ""))
        parts.append(element("text", str(tick), x=f"{x:.1f}", y=_HEIGHT - _BOTTOM + 22,
                             text_anchor="middle"))  # fmt: skip
    parts.append(element("text", text(across), x=_WIDTH - _RIGHT, y=_HEIGHT - 8, text_anchor="end"))
    for number, (name, some) in enumerate(series):
        drawn = sorted((dot for dot in some if dot.y > 0), key=lambda dot: dot.x)
        points = [at(dot) for dot in drawn]
        line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        color = f"s{number % 8}"
        if len(points) > 1:
            parts.append(element("path", d=line, class_=f"curve {color}"))
        for dot, (x, y) in zip(drawn, points, strict=True):
            said = element("title", text(f"{name} {dot.label}: {dot.x:.3g}, {dot.y:.3g}".strip()))
            full = "" if dot.best else " hollow"
            if 0 < dot.error < dot.y:
                ends = [at(dot._replace(y=dot.y + sign * dot.error))[1] for sign in (-1, 1)]
                parts.append(element("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=f"{ends[0]:.1f}",
                                     y2=f"{ends[1]:.1f}", class_=f"error {color}"))  # fmt: skip
            parts.append(element("circle", said, cx=f"{x:.1f}", cy=f"{y:.1f}", r=5,
                                 class_=color + full))  # fmt: skip
            if dot.label and len(series) == 1:
                parts.append(element("text", text(dot.label), x=f"{x + 8:.1f}", y=f"{y - 6:.1f}"))
    legend = [
        element("span", element("i", class_=f"s{number % 8}"), text(name))
        for number, (name, _) in enumerate(series)
        if name
    ]
    chart = element("svg", *parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", class_="curves")
    return element("p", text(up), class_="up") + chart + element("p", *legend, class_="legend")
