"""What is said of a profile: where it is, what it was made from, how long it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from cachegen_cli.results.picking import pick
from cachegen_cli.results.run import Run
from cachegen_cli.results.spans import Entry


@dataclass(frozen=True)
class ProfileInfo:
    """A profile's file.

    Attributes:
        file: its path.
        sha256: of the file.
        profile_bytes: its length, which no stream holds: it is kept once for a model.
        model: the model that it is for.
        texts, tokens: what it was calibrated on.
    """

    file: str
    sha256: str
    profile_bytes: int
    model: str
    texts: int
    tokens: int


@dataclass(frozen=True)
class CalibratedUnit:
    """The basis of some layers' keys or values.

    Attributes:
        layers: cache entries that share it.
        tensor: "keys" or "values".
        channels: of all heads of all layers.
        components: that the profile holds, the largest first.
        energy: their share of the calibration texts' variance.
        step_weights: by layer, how much finer than the others its values are coded.
    """

    layers: tuple[Entry, ...]
    tensor: str
    channels: int
    components: int
    energy: float
    step_weights: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """The result of ``calibrate``: a profile, and what is in it."""

    kind: ClassVar = "calibrate"
    run: Run
    profile: ProfileInfo
    units: tuple[CalibratedUnit, ...]

    def to_json(self) -> dict[str, Any]:
        """One flat object."""
        return self.run.to_json() | {
            "profile": asdict(self.profile),
            "units": [asdict(unit) for unit in self.units],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Calibration:
        """The inverse of `to_json`."""
        units = [
            unit | {name: tuple(unit[name]) for name in ("layers", "step_weights")}
            for unit in data["units"]
        ]
        return cls(
            Run.from_json(data),
            pick(ProfileInfo, data["profile"]),
            tuple(pick(CalibratedUnit, unit) for unit in units),
        )
