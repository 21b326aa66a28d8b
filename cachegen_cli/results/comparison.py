"""Schemes side by side: measured points, and where their curves stand at equal quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, exp, log
from typing import Any, ClassVar

from cachegen_cli.results.picking import pick
from cachegen_cli.results.planning import Candidate, Target
from cachegen_cli.results.profile import ProfileInfo
from cachegen_cli.results.run import Run


@dataclass(frozen=True)
class Standing:
    """A scheme where its curve meets the target.

    Attributes:
        scheme: its name, with the options that are not the curve's own.
        coded_bits_per_element, kl_nats: on the curve, straight in bits against log KL.
        stderr: of the one that is not given, from the KL's standard error at the nearest points.
        extrapolated: whether the target lies outside the measured points.
    """

    scheme: str
    coded_bits_per_element: float
    kl_nats: float
    stderr: float
    extrapolated: bool


@dataclass(frozen=True)
class Comparison:
    """The result of ``compare``.

    Attributes:
        raw_bytes: the cache in 16 bits.
        mlx_bits_per_element: what mlx-lm's 4-bit cache takes as it is stored, None where head_dim
            does not allow it.
        target: where the curves are compared.
        points: every setting that was measured; the name is the scheme.
    """

    kind: ClassVar = "compare"
    run: Run
    raw_bytes: int
    mlx_bits_per_element: float | None
    target: Target
    points: tuple[Candidate, ...]

    @property
    def schemes(self) -> list[str]:
        """Their names, in the order of the points."""
        return list(dict.fromkeys(map(curve_of, self.points)))

    @property
    def standings(self) -> list[Standing]:
        """Every scheme that has a curve, the best first."""
        found = [
            self._standing(name, [p for p in self.points if curve_of(p) == name])
            for name in self.schemes
        ]
        return sorted((one for one in found if one), key=self._cost)

    @property
    def out_of_reach(self) -> list[str]:
        """Schemes with a curve that ends far from the target."""
        standing = {one.scheme for one in self.standings}
        points: dict[str, int] = {}
        for point in self.points:
            if point.quality.kl_nats > _LOSSLESS:
                points[curve_of(point)] = points.get(curve_of(point), 0) + 1
        return [name for name, n in points.items() if n > 1 and name not in standing]

    @property
    def at_bits(self) -> bool:
        """Whether the target is a size."""
        return self.target.figure == "coded_bits_per_element"

    @property
    def winner(self) -> str | None:
        """The best scheme, if its interval of two standard errors overlaps with no other's."""
        ranked = self.standings
        if len(ranked) < 2:
            return None
        best, second = ranked[0], ranked[1]
        gap = self._cost(second) - self._cost(best)
        apart = gap > 2 * best.stderr + 2 * max(one.stderr for one in ranked[1:])
        return best.scheme if apart and not best.extrapolated else None

    def _cost(self, standing: Standing) -> float:
        """What the target leaves to compare."""
        return standing.kl_nats if self.at_bits else standing.coded_bits_per_element

    def bytes_at(self, standing: Standing) -> int:
        """Coded bytes of the cache at a standing."""
        return round(standing.coded_bits_per_element * self.raw_bytes / 16)

    def profile_of(self, standing: Standing) -> ProfileInfo | None:
        """The profile that a scheme uses."""
        used = [p.settings.profile for p in self.points if curve_of(p) == standing.scheme]
        return used[0] if used else None

    def profile_pays_tokens(self, standing: Standing) -> int | None:
        """Tokens from which a scheme with its profile takes less than the best without one.

        None where it uses none, or takes more without it already.
        """
        profile = self.profile_of(standing)
        others = [one for one in self.standings if self.profile_of(one) is None]
        if profile is None or not others:
            return None
        saved = self.bytes_at(others[0]) - self.bytes_at(standing)
        return ceil(profile.profile_bytes * self.run.prompt.tokens / saved) if saved > 0 else None

    def to_json(self) -> dict[str, Any]:
        """The run's keys, points, and what follows from them."""
        return self.run.to_json() | {
            "raw_bytes": self.raw_bytes,
            "mlx_bits_per_element": self.mlx_bits_per_element,
            "target": asdict(self.target),
            "points": [point.to_json() for point in self.points],
            "standings": [
                asdict(one)
                | {
                    "coded_bytes": self.bytes_at(one),
                    "profile_pays_tokens": self.profile_pays_tokens(one),
                }
                for one in self.standings
            ],
            "winner": self.winner,
            "out_of_reach": self.out_of_reach,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Comparison:
        """The inverse of `to_json`."""
        own = {
            "run": Run.from_json(data),
            "target": pick(Target, data["target"]),
            "points": tuple(Candidate.from_json(point) for point in data["points"]),
        }
        return pick(cls, data | own)

    def _standing(self, name: str, points: Sequence[Candidate]) -> Standing | None:
        curve = sorted(
            (log(p.quality.kl_nats), p.coded_bits_per_element, p.quality.kl_nats_stderr or 0.0)
            for p in points
            if p.quality.kl_nats > _LOSSLESS
        )
        if len(curve) < 2:
            return None
        at, other = (1, 0) if self.at_bits else (0, 1)
        x = self.target.value if self.at_bits else log(self.target.value)
        curve.sort(key=lambda point: point[at])
        place = min(max(sum(p[at] < x for p in curve), 1), len(curve) - 1)
        low, high = curve[place - 1], curve[place]
        span = high[at] - low[at]
        share = (x - low[at]) / span if span else 0.0
        if not -_FARTHEST <= share <= 1 + _FARTHEST:
            return None
        y = low[other] + share * (high[other] - low[other])
        extrapolated = not curve[0][at] <= x <= curve[-1][at]
        # relative errors of the KL at both ends, as they count at this share
        relative = max(p[2] / exp(p[0]) for p in (low, high))
        if self.at_bits:
            return Standing(name, x, exp(y), relative * exp(y), extrapolated)
        slope = abs((high[1] - low[1]) / (high[0] - low[0])) if high[0] != low[0] else 0.0
        return Standing(name, y, self.target.value, slope * relative, extrapolated)


def curve_of(point: Candidate) -> str:
    """What a setting is a point of."""
    return point.curve or point.settings.scheme


_FARTHEST = 1.0  # of the distance of two points, that a curve is drawn on beyond its end
_LOSSLESS = 1e-7  # nats; what loses no more has no curve
