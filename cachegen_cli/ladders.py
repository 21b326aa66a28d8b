"""A scheme's settings from most loss to least, for finding one at a target."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any, NamedTuple

from cachegen_cli.results.settings import Settings
from cachegen_cli.schedules import settings_with
from cachegen_cli.schemes import SCHEMES

_STEP = 1.01  # from one error to the next
_BINS = range(4, 257, 2)  # an odd number codes as the even one below it
_FIRST_BINS, _FIRST_WIDTHS, _FIRST_ERRORS = (16, 48), (3, 4, 6), (1.6, 0.6)


class Ladder(NamedTuple):
    """A scheme's settings from most loss to least.

    Attributes:
        rungs: the settings.
        first: rungs that are measured first, so that there is a curve.
        beside: settings that are measured, too, and are no rungs.
    """

    rungs: list[Settings]
    first: list[int]
    beside: list[Settings]


def ladder(base: Settings) -> Ladder | None:
    """Return the settings of a scheme that has several, None for one that loses nothing.

    Args:
        base: the scheme with the options that stay as they are.
    """
    kind = SCHEMES[base.scheme]
    if kind.has_bits:
        rungs = [replace(base, key_bits=bits, value_bits=bits) for bits in kind.widths]
        return Ladder(rungs, [kind.widths.index(bits) for bits in _FIRST_WIDTHS], [])
    base = settings_with("uniform", base)
    if base.scheme == "cachegen":
        rungs = [_with(base, bins=bins) for bins in _BINS]
        return Ladder(rungs, [_BINS.index(bins) for bins in _FIRST_BINS], [base])
    if not kind.any_size:
        return None
    least, usual, most = kind.errors
    steps = range(int(log(most / least) / log(_STEP)) + 1)
    errors = list(dict.fromkeys(max(float(f"{most / _STEP**i:.3g}"), least) for i in steps))
    nearest = [min(errors, key=lambda error: abs(error - x * usual)) for x in _FIRST_ERRORS]
    rungs = [_with(base, error=error) for error in errors]
    return Ladder(rungs, [errors.index(error) for error in nearest], [])


def _with(settings: Settings, **options: Any) -> Settings:
    return replace(settings, options=options | settings.options)
