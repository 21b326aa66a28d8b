"""Numbers for people. Bytes are SI: 1 kB = 1000 B."""

from __future__ import annotations


def si_bytes(count: int | None) -> str:
    """Three significant digits and a unit: 8390000 -> "8.39 MB"."""
    if count is None:
        return "-"
    if count < 1000:
        return f"{count} B"
    size, units = count / 1000, ["kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{size:.{digits}f} {units[0]}"


def percent(fraction: float | None) -> str:
    """0.0341 -> "3.4 %"."""
    if fraction is None:
        return "-"
    return f"{100 * fraction:.1f} %"


def bits(value: float | None) -> str:
    """Bits an element with two decimals."""
    return "-" if value is None else f"{value:.2f}"


def error(value: float) -> str:
    """A relative error with three significant digits."""
    return f"{value:.3g}"


def whole(value: object) -> str:
    """A count, a list of counts by layer as its range, or "-"."""
    if value is None:
        return "-"
    if isinstance(value, list):
        low, high = min(value), max(value)
        return f"{low}-{high}" if low != high else str(low)
    return str(value)
