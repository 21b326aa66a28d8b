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


def error(value: float | None) -> str:
    """A relative error or a KL with three significant digits."""
    return "" if value is None else f"{value:.3g}"


def rough(value: float | None) -> str:
    """Two significant digits: a standard error, say."""
    return "" if value is None else f"{value:.2g}"


def plus_minus(value: float, deviation: float | None) -> str:
    """ "0.0107 ± 0.0012"."""
    return error(value) + ("" if deviation is None else f" ± {rough(deviation)}")


def times(ratio: float | None) -> str:
    """How many times as much."""
    return "" if ratio is None else f"{ratio:.2f}"


def rounded(value: float | None) -> str:
    """Three decimals."""
    return "" if value is None else f"{value:.3f}"


def perplexity(value: float | None) -> str:
    """Four significant digits."""
    return "" if value is None else f"{value:.4g}"


def whole(value: object) -> str:
    """A count, a list of counts by layer as its range, or "-"."""
    if value is None:
        return "-"
    if isinstance(value, list):
        low, high = min(value), max(value)
        return f"{low}-{high}" if low != high else str(low)
    return str(value)


def number(key: str, value: float | None) -> str:
    """A figure in the unit that its key names."""
    if value is None:
        return "-"
    if value < 0:
        return f"-{number(key, -value)}"
    if key.endswith("_bytes") or key.startswith("bytes_"):
        return si_bytes(round(value))
    if key.endswith(
        ("_saving", "_agreement", "_agreement_stderr", "_agreement_margin", "kl_share_of_largest")
    ):
        return percent(value)
    if key.endswith("bits_per_element"):
        return bits(value)
    return f"{value:,}" if isinstance(value, int) else error(value)


def signed(key: str, value: float | None) -> str:
    """A difference of two figures; of percentages in points."""
    if value is None:
        return "-"
    text = number(key, abs(value)).replace(" %", " pt")
    return ("+" if value > 0 else "-" if value < 0 else "") + text
