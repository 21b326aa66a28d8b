"""A scheme's settings around a target, measured ever nearer to it, and what they say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, log
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from cachegen_cli.bootstrap import interval
from cachegen_cli.ladders import Ladder
from cachegen_cli.results.candidates import Candidate, Target
from cachegen_cli.results.comparison import NEAR_BITS, NEAR_KL, Standing
from cachegen_cli.results.quality import LEAST_KL
from cachegen_cli.results.settings import Settings

Floats = npt.NDArray[np.float64]

_TRIALS = 8  # readings beyond the first ones
_FAR = 3  # times what is near: an end of a bracket that is not
_READ_WITHIN = 4  # times what is near: points that the target is read off from
_SMOOTH = 0.02  # distance that is as good as none


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
        return log(max(self.candidate.quality.kl_nats, LEAST_KL))

    @property
    def bits(self) -> float:
        """Return its coded bits an element."""
        return self.candidate.coded_bits_per_element


class Aim(NamedTuple):
    """Aim at a KL or a size, at which curves are read off.

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

    @property
    def level(self) -> float:
        """Return the target's bits or log KL."""
        return self.target.value if self.at_bits else log(self.target.value)

    @property
    def levels(self) -> Floats | float:
        """Return the same in resamples of the positions, if it changes in them."""
        return self.level if self.draws is None else _log(self.draws)

    def distance(self, point: Point) -> float:
        """Return how much more than the target a point loses: log KL, or bits too few."""
        return self.level - point.bits if self.at_bits else point.log_kl - self.level


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
        """Return where the curve meets the target, and that in each resample of the positions.

        Every point near the target says something of it: its own figures, moved to the target
        along the slope of the curve, straight in bits against log KL. The nearer a point the more
        it counts; nothing is read off beyond them. What their readings scatter is part of the
        error: a KL may jump from setting to setting. None where the target is not between two.
        """
        points = self._near(aim)
        if not points:
            return None
        weights = np.array([1 / (abs(aim.distance(p)) + _SMOOTH) for p in points])
        weights /= weights.sum()
        slope = self._slope(aim)

        def at_target(log_kl: Floats, target: Floats | float) -> Floats:
            """Return readings [points, ...]: bits an element, or log KL."""
            bits = np.array([p.bits for p in points]).reshape(-1, *(1,) * (log_kl.ndim - 1))
            return (
                log_kl + (target - bits) / slope
                if aim.at_bits
                else bits + slope * (target - log_kl)
            )

        read = at_target(np.array([p.log_kl for p in points]), aim.level)
        known = [p.log_kl if aim.at_bits else p.bits for p in points]
        value = float(np.clip(weights @ read, min(known), max(known)))
        draws = [p.draws for p in points if p.draws is not None]
        moved, low, high = None, None, None
        if len(draws) == len(points):
            moved = weights @ at_target(_log(np.array(draws)), aim.levels)
            scatter = np.sqrt(weights @ np.square(read - value) / max(len(points) - 1, 1))
            jumps = np.random.default_rng(crc32(self.name.encode()))
            moved = moved + scatter * jumps.standard_normal(moved.shape)
            if not aim.at_bits:  # nor are sizes that nothing on the curve takes
                bits = [p.bits for p in self._on_curve()]
                moved = np.clip(moved, min(bits), max(bits))
            low, high = interval(np.exp(moved) if aim.at_bits else moved)
        standing = Standing(
            scheme=self.name,
            coded_bits_per_element=aim.target.value if aim.at_bits else value,
            kl_nats=exp(value) if aim.at_bits else aim.target.value,
            low=low,
            high=high,
            nearest=min(points, key=lambda p: abs(aim.distance(p))).candidate.name,
            read_from=tuple(p.candidate.name for p in sorted(points, key=lambda p: p.bits)),
        )
        return standing, moved

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
        """Return the points but those beside the curve."""
        return [point for point in self.points if point not in self._beside]

    def _around(self, aim: Aim) -> tuple[Point | None, Point | None]:
        """Return the nearest points that lose more than the target, and at most as much."""
        points = self._on_curve()
        above = [p for p in points if aim.distance(p) > 0]
        below = [p for p in points if aim.distance(p) <= 0]
        return (
            min(above, key=aim.distance, default=None),
            max(below, key=aim.distance, default=None),
        )

    def _near(self, aim: Aim) -> list[Point]:
        """Return the points that the target is read off from; none where it is not between two.

        A point that is the target itself needs no other.
        """
        above, below = self._around(aim)
        if below is not None and not aim.distance(below):
            return [below]
        if above is None or below is None:
            return []
        near = [p for p in self._on_curve() if abs(aim.distance(p)) <= _READ_WITHIN * aim.near]
        return [*near, *(p for p in (above, below) if p not in near)]

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
            # a curve that bends is halved every other time, or one end would never move
            if free and len(known) % 2 and max(to_above, -to_below) > _FAR * aim.near:
                return free[len(free) // 2]
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
        """Return bits an element by log KL around the target, between points well off it.

        Nearer ones would tell how their KL jumps. Where it is undefined nothing is moved far by it.
        """
        by_distance = sorted(self._on_curve(), key=aim.distance)
        off = _READ_WITHIN * aim.near
        low = next((p for p in reversed(by_distance) if aim.distance(p) <= -off), by_distance[0])
        high = next((p for p in by_distance if aim.distance(p) >= off), by_distance[-1])
        run = high.log_kl - low.log_kl
        return (high.bits - low.bits) / run if run and high.bits < low.bits else -1.0


def _log(draws: Floats) -> Floats:
    return np.log(np.maximum(draws, LEAST_KL))


def _figures(point: Point) -> str:
    quality = point.candidate.quality
    return f"{point.candidate.name}, it has KL {quality.kl_nats:.3g} in {point.bits:.2f} bits"
