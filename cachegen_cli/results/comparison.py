"""Schemes side by side: measured points, and where their curves stand at equal quality."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, ClassVar

from cachegen_cli.results.candidates import Candidate, Target
from cachegen_cli.results.picking import pick
from cachegen_cli.results.profile import ProfileInfo
from cachegen_cli.results.quality import margin
from cachegen_cli.results.run import Run

# of a target to either side, within which points are near enough
NEAR_KL = 0.1  # of a KL
NEAR_BITS = 0.05  # bits an element, of a size


@dataclass(frozen=True)
class Standing:
    """A scheme where its curve meets the target.

    Attributes:
        scheme: its name, with the options that are not the curve's own.
        coded_bits_per_element, kl_nats: read off, straight in bits against log KL.
        low, high: ends of the 95 % interval of the one that is not given, from resamples of the
            positions in which the target's KL and the curve's change together; None where there
            is one position only.
        nearest: name of the measured setting that is nearest to the target.
        read_from: names of the settings that it is read off from, one where it is the target.
        beats: schemes that are worse in 97.5 % of the resamples.
    """

    scheme: str
    coded_bits_per_element: float
    kl_nats: float
    low: float | None
    high: float | None
    nearest: str
    read_from: tuple[str, ...]
    beats: tuple[str, ...] = ()

    @property
    def margin(self) -> float | None:
        """Return half of the interval."""
        return margin(self.low, self.high)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Standing:
        """Return the inverse of `dataclasses.asdict`."""
        return pick(cls, data | {key: tuple(data[key]) for key in ("read_from", "beats")})


@dataclass(frozen=True)
class OutOfReach:
    """A scheme whose curve does not meet the target, and why."""

    scheme: str
    reason: str


@dataclass(frozen=True)
class Floor:
    """The KL that a scheme does not come below on these texts, however small its step."""

    scheme: str
    kl_nats: float
    kl_nats_low: float | None
    kl_nats_high: float | None


@dataclass(frozen=True)
class Comparison:
    """The result of ``compare``.

    Attributes:
        raw_bytes: the cache in 16 bits.
        mlx_bits_per_element: what mlx-lm's 4-bit cache takes as it is stored, None where head_dim
            does not allow it.
        target: where the curves are compared.
        target_setting: name of the setting whose KL that is; "" where it was given.
        points: every setting that was measured; the name is the scheme.
        standings: every scheme whose curve meets the target, the best first.
        out_of_reach: the others that have a curve.
        floors: of schemes with a profile.
    """

    kind: ClassVar = "compare"
    run: Run
    raw_bytes: int
    mlx_bits_per_element: float | None
    target: Target
    target_setting: str
    points: tuple[Candidate, ...]
    standings: tuple[Standing, ...]
    out_of_reach: tuple[OutOfReach, ...]
    floors: tuple[Floor, ...]

    @property
    def schemes(self) -> list[str]:
        """Return their names, in the order of the points."""
        return list(dict.fromkeys(map(curve_of, self.points)))

    def nearest(self, standing: Standing) -> Candidate:
        """Return the measured setting that is nearest to the target."""
        return next(p for p in self.points if p.name == standing.nearest)

    @property
    def at_bits(self) -> bool:
        """Whether the target is a size."""
        return self.target.figure == "coded_bits_per_element"

    @property
    def winner(self) -> str | None:
        """Return the best scheme, if it beats every other."""
        ranked = self.standings
        others = {one.scheme for one in ranked[1:]}
        return ranked[0].scheme if others and others <= set(ranked[0].beats) else None

    def bytes_at(self, standing: Standing) -> int:
        """Coded bytes of the cache at a standing."""
        return round(standing.coded_bits_per_element * self.raw_bytes / 16)

    def profile_of(self, standing: Standing) -> ProfileInfo | None:
        """The profile that a scheme uses."""
        used = [p.settings.profile for p in self.points if curve_of(p) == standing.scheme]
        return used[0] if used else None

    @property
    def best_without_profile(self) -> Standing | None:
        """Return the best scheme that needs no profile."""
        return next((one for one in self.standings if self.profile_of(one) is None), None)

    def profile_pays_tokens(self, standing: Standing) -> int | None:
        """Tokens from which a scheme with its profile takes less than the best without one.

        None where it uses none, or takes more without it already.
        """
        profile = self.profile_of(standing)
        other = self.best_without_profile
        if profile is None or other is None:
            return None
        saved = self.bytes_at(other) - self.bytes_at(standing)
        return ceil(profile.profile_bytes * self.run.prompt.tokens / saved) if saved > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return the run's keys, points, and what follows from them."""
        return self.run.to_json() | {
            "raw_bytes": self.raw_bytes,
            "mlx_bits_per_element": self.mlx_bits_per_element,
            "target": asdict(self.target),
            "target_setting": self.target_setting,
            "points": [point.to_json() for point in self.points],
            "standings": [
                asdict(one)
                | {
                    "margin": one.margin,
                    "coded_bytes": self.bytes_at(one),
                    "profile_pays_tokens": self.profile_pays_tokens(one),
                }
                for one in self.standings
            ],
            "winner": self.winner,
            "out_of_reach": [asdict(one) for one in self.out_of_reach],
            "floors": [asdict(one) for one in self.floors],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Comparison:
        """Return the inverse of `to_json`."""
        own = {
            "run": Run.from_json(data),
            "target": pick(Target, data["target"]),
            "points": tuple(Candidate.from_json(point) for point in data["points"]),
            "standings": tuple(Standing.from_json(one) for one in data["standings"]),
            "out_of_reach": tuple(pick(OutOfReach, one) for one in data["out_of_reach"]),
            "floors": tuple(pick(Floor, one) for one in data["floors"]),
        }
        return pick(cls, data | own)


def curve_of(point: Candidate) -> str:
    """What a setting is a point of."""
    return point.curve or point.settings.scheme
