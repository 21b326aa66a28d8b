"""Settings that were measured beside others, and what they are measured for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.picking import pick
from cachegen_cli.results.quality import Quality
from cachegen_cli.results.settings import Settings

SAME_BYTES = 1.01  # of a plan's, for what it is compared with


@dataclass(frozen=True)
class Candidate:
    """A setting that was measured beside others: its size and quality over all texts.

    Attributes:
        curve: of a comparison, what the setting is a point of.
    """

    name: str
    settings: Settings
    coded_bytes: int
    coded_bits_per_element: float
    quality: Quality
    curve: str = ""

    @classmethod
    def of(cls, name: str, measured: Measurement, curve: str = "") -> Candidate:
        """Return a measurement whose quality was measured as a candidate."""
        totals, quality = measured.totals, measured.quality
        if quality is None:
            raise ValueError(f"the quality of {name} was not measured")
        bits = totals.coded_bits_per_element or 0.0
        return cls(name, measured.settings, totals.coded_bytes or 0, bits, quality, curve)

    def to_json(self) -> dict[str, Any]:
        """Return all fields, and the options that measure the setting by itself."""
        return asdict(self) | {
            "arguments": self.settings.arguments,
            "quality": self.quality.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Candidate:
        """Return the inverse of `to_json`."""
        own = {
            "settings": Settings.from_json(data["settings"]),
            "quality": pick(Quality, data["quality"]),
        }
        return pick(cls, data | own)


@dataclass(frozen=True)
class Target:
    """Target of a plan or comparison: ``figure`` (a key of the plan) at most ``value``."""

    figure: str
    value: float


def best_within(candidates: Sequence[Candidate], coded_bytes: int) -> Candidate | None:
    """Return the one of lowest KL that takes at most 1 % more than so many bytes."""
    fitting = [one for one in candidates if one.coded_bytes <= SAME_BYTES * coded_bytes]
    return min(fitting, key=lambda one: one.quality.kl_nats, default=None)
