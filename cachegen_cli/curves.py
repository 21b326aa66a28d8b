"""A scheme's settings around a target, measured ever nearer to it, and what they say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cachegen_cli.bootstrap import interval
from cachegen_cli.results.analyses import pareto
from cachegen_cli.results.candidates import Candidate, Target
from cachegen_cli.results.comparison import NEAR_BITS, NEAR_KL, Standing
from cachegen_cli.results.settings import Settings
from cachegen_cli.schedules import settings_with
from cachegen_cli.schemes import SCHEMES

Floats = npt.NDArray[np.float64]

_TRIALS = 8  # readings beyond the first ones
_LEAST_KL = 1e-12  # stands for a KL of 0 in logarithms
_STEP = 1.01  # from one error to the next
_SLOPE_WITHIN = 1.5  # of a logarithm: points that tell the slope of a curve at a target
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


@dataclass(frozen=True, eq=False)
class Point:
    """A setting that was measured.

    Attributes:
        rung: on the ladder; None beside it.
        draws: its KL in resamples of the positions, None where there is one position only.
    """

    candidate: Candidate
    rung: int | None
    draws: Floats | None

    @property
    def log_kl(self) -> float:
        """Return the logarithm of its KL."""
        return log(max(self.candidate.quality.kl_nats, _LEAST_KL))

    @property
    def bits(self) -> float:
        """Return its coded bits an element."""
        return self.candidate.coded_bits_per_element


class Aim(NamedTuple):
    """What curves are read off at: a KL, or a size.

    Attributes:
        draws: of a KL that was measured, the same in resamples of the positions.
    """

    target: Target
    draws: Floats | None = None

    @property
    def at_bits(self) -> bool:
        """Return whether the target is a size."""
        return self.target.figure == "coded_bits_per_element"

    @property
    def near(self) -> float:
        """Return the distance at which points are near enough."""
        return NEAR_BITS if self.at_bits else log(1 + NEAR_KL)

    def distance(self, point: Point) -> float:
        """Return how much more than the target a point loses: log KL, or bits too few."""
        if self.at_bits:
            return self.target.value - point.bits
        return point.log_kl - log(self.target.value)


class Curve:
    """A scheme's measured settings.

    Attributes:
        name: the scheme, with its fixed options.
        points: in the order in which they were measured.
    """

    def __init__(
        self,
        name: str,
        steps: Ladder,
        measure: Callable[[Settings], tuple[Candidate, Floats | None]],
    ) -> None:
        self.name, self._ladder, self._measure = name, steps, measure
        self.points: list[Point] = []
        for rung in steps.first:
            self._add(steps.rungs[rung], rung)
        self._beside = [self._add(settings, None) for settings in steps.beside]

    def approach(self, aim: Aim) -> None:
        """Measure settings ever nearer to a target, until one on either side is near enough.

        Where widths have nothing in between, keys and values get different ones; the better of
        the two mixes is on the curve.
        """
        for _ in range(_TRIALS):
            rung = self._next_rung(aim)
            if rung is None:
                break
            self._add(self._ladder.rungs[rung], rung)
        above, below = self._around(aim)
        if above and below and below.candidate.settings.key_bits and aim.distance(below):
            wide, narrow = below.candidate.settings, above.candidate.settings
            mixed = [
                self._add(replace(wide, value_bits=narrow.value_bits), None),
                self._add(replace(wide, key_bits=narrow.key_bits), None),
            ]
            self._beside.append(max(mixed, key=lambda point: point.log_kl))

    def standing(self, aim: Aim) -> tuple[Standing, Floats | None] | None:
        """Return where the curve meets the target, straight in bits against log KL.

        With what is read off (bits an element, or log KL) in each resample of the positions, where
        there are any. None where the target is not between two points.
        """
        above, below = self._around(aim)
        if below is not None and not aim.distance(below):
            above = below  # it is the target itself
        if below is None or above is None:
            return None
        gap = aim.distance(above) - aim.distance(below)
        share = -aim.distance(below) / gap if gap else 0.0  # 0 at the point below

        def between(low_value: Any, high_value: Any) -> Any:
            return low_value + share * (high_value - low_value)

        bits, log_kl = between(below.bits, above.bits), between(below.log_kl, above.log_kl)
        draws = None
        if below.draws is not None and above.draws is not None:
            moved = between(_log(below.draws), _log(above.draws))
            draws = moved if aim.at_bits else bits + self._slope(aim) * (_log_target(aim) - moved)
        low, top = interval(draws) if draws is not None else (None, None)
        if aim.at_bits and low is not None and top is not None:
            low, top = exp(low), exp(top)
        nearest = min((below, above), key=lambda point: abs(aim.distance(point)))
        standing = Standing(
            scheme=self.name,
            coded_bits_per_element=bits,
            kl_nats=exp(log_kl),
            low=low,
            high=top,
            nearest=nearest.candidate.name,
            between=tuple(dict.fromkeys(p.candidate.name for p in (above, below))),
        )
        return standing, draws

    def why_not(self, aim: Aim) -> str:
        """Return why the curve does not meet the target, in words."""
        last = min(self._on_curve(), key=aim.distance)
        if aim.distance(last) > 0:
            return f"at its least loss, {_figures(last)}"
        return f"at its most loss, {_figures(max(self._on_curve(), key=aim.distance))}"

    def _add(self, settings: Settings, rung: int | None) -> Point:
        candidate, draws = self._measure(settings)
        self.points.append(Point(candidate, rung, draws))
        return self.points[-1]

    def _on_curve(self) -> list[Point]:
        """Return the points that no other beats in both bits and KL, but those beside the curve."""
        points = [point for point in self.points if point not in self._beside]
        best = pareto([(p.bits, p.log_kl) for p in points])
        return [point for point, keep in zip(points, best, strict=True) if keep]

    def _around(self, aim: Aim) -> tuple[Point | None, Point | None]:
        """Return the nearest points that lose more than the target, and at most as much."""
        points = self._on_curve()
        above = [p for p in points if aim.distance(p) > 0]
        below = [p for p in points if aim.distance(p) <= 0]
        return (
            min(above, key=aim.distance, default=None),
            max(below, key=aim.distance, default=None),
        )

    def _next_rung(self, aim: Aim) -> int | None:
        """Return the rung to measure next; None where nothing is left, or near enough."""
        known = sorted((p for p in self.points if p.rung is not None), key=lambda p: p.rung or 0)
        above = [p for p in known if aim.distance(p) > 0]
        below = [p for p in known if aim.distance(p) <= 0]
        taken = {p.rung for p in known}
        if above and below:
            one, other = min(above, key=aim.distance), max(below, key=aim.distance)
            to_above, to_below = aim.distance(one), aim.distance(other)
            if not to_below or (to_above <= aim.near and -to_below <= aim.near):
                return None
            wanted = aim.near / 2 * (1 if to_above > aim.near else -1)
            first, last = sorted((one.rung or 0, other.rung or 0))
            free = [rung for rung in range(first + 1, last) if rung not in taken]
        else:  # beyond the last point on the side that is missing
            one, other = known[0], known[-1]
            wanted = -aim.near if above else aim.near
            last = len(self._ladder.rungs)
            free = list(range((other.rung or 0) + 1, last) if above else range(one.rung or 0))
        if not free:
            return None
        fall = aim.distance(one) - aim.distance(other)
        run = (other.rung or 0) - (one.rung or 0)
        guess = (one.rung or 0) + (aim.distance(one) - wanted) * run / fall if fall else free[0]
        return min(free, key=lambda rung: abs(rung - guess))

    def _slope(self, aim: Aim) -> float:
        """Return bits an element by log KL around the target, by least squares."""
        points = self._on_curve()
        close = [p for p in points if abs(aim.distance(p)) <= _SLOPE_WITHIN]
        if len(close) < 2:
            close = sorted(points, key=lambda p: abs(aim.distance(p)))[:2]
        x, y = (np.array([getattr(p, name) for p in close]) for name in ("log_kl", "bits"))
        spread = float(np.square(x - x.mean()).sum())
        return float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread else 0.0


def _log(draws: Floats) -> Floats:
    return np.log(np.maximum(draws, _LEAST_KL))


def _log_target(aim: Aim) -> Floats | float:
    return log(aim.target.value) if aim.draws is None else _log(aim.draws)


def _figures(point: Point) -> str:
    quality = point.candidate.quality
    return f"{point.candidate.name}, it has KL {quality.kl_nats:.3g} in {point.bits:.2f} bits"
