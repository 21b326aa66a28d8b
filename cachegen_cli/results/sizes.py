"""Sizes of tensors, layers and whole caches; totals and ratios are defined here once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar

from cachegen_cli.results.picking import pick


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Sizes of a tensor or of any sum of tensors.

    Attributes:
        elements: numbers held.
        parameter_bytes: scales and zeros, 4 bytes a group and channel.
        fixed_bytes: codes packed at their width + parameters.
        entropy_bytes: the estimate that was chosen + parameters; no probability tables.
        raw_channel_bytes: estimate of the codes, one distribution a head and channel.
        raw_pooled_bytes: estimate of the codes, one distribution a head.
        delta_channel_bytes: estimate of the token deltas by head and channel.
        delta_pooled_bytes: estimate of the token deltas by head.
        signal_energy: sum of squares of the 16-bit values.
        error_energy: sum of squares of value - dequantized value.
    """

    elements: int
    parameter_bytes: int
    fixed_bytes: int
    entropy_bytes: int
    raw_channel_bytes: int
    raw_pooled_bytes: int
    delta_channel_bytes: int
    delta_pooled_bytes: int
    signal_energy: float
    error_energy: float

    DERIVED: ClassVar = (
        "raw_bytes",
        "entropy_bits_per_element",
        "entropy_saving",
        "relative_rms_error",
    )

    @property
    def raw_bytes(self) -> int:
        """16 bits an element."""
        return 2 * self.elements

    @property
    def entropy_bits_per_element(self) -> float:
        """Entropy bytes, parameters included, in bits an element."""
        return 8 * self.entropy_bytes / self.elements

    @property
    def entropy_saving(self) -> float:
        """1 - entropy / fixed."""
        return 1 - self.entropy_bytes / self.fixed_bytes

    @property
    def relative_rms_error(self) -> float:
        """Root of error energy / signal energy; 0 for a tensor of zeros."""
        return sqrt(self.error_energy / self.signal_energy) if self.signal_energy else 0.0

    def to_json(self) -> dict[str, Any]:
        """Fields and derived numbers."""
        return asdict(self) | {name: getattr(self, name) for name in self.DERIVED}


def total(parts: Iterable[Bytes]) -> Bytes:
    """The sum of some sizes, field by field."""
    parts = tuple(parts)
    return Bytes(**{f.name: sum(getattr(p, f.name) for p in parts) for f in fields(Bytes)})


@dataclass(frozen=True, kw_only=True)
class TensorResult(Bytes):
    """One entry's keys or values: its sizes, its code width and whether deltas were chosen."""

    bits: int
    delta: bool


@dataclass(frozen=True)
class LayerResult:
    """One cache entry: ``tokens`` kept of ``tokens_seen``."""

    layer: int
    cache: str
    tokens: int
    tokens_seen: int
    keys: TensorResult
    values: TensorResult

    @cached_property
    def total(self) -> Bytes:
        """Keys and values together."""
        return total((self.keys, self.values))

    def to_json(self) -> dict[str, Any]:
        """The entry with both tensors."""
        return asdict(self) | {"keys": self.keys.to_json(), "values": self.values.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LayerResult:
        """The inverse of `to_json`."""
        tensors = {name: pick(TensorResult, data[name]) for name in ("keys", "values")}
        return pick(cls, data | tensors)


@dataclass(frozen=True)
class Settings:
    """How tensors were quantized and estimated.

    Attributes:
        key_bits, value_bits: code widths (of the first layers, where the schedule is "depth").
        group_size: tokens a group.
        schedule: "uniform", or "depth" for fewer bits in deeper layers.
        delta: "auto" (the smaller for each tensor), "on" or "off".
        pooled: one distribution a head instead of one a channel.
    """

    key_bits: int = 4
    value_bits: int = 4
    group_size: int = 32
    schedule: str = "uniform"
    delta: str = "auto"
    pooled: bool = False


@dataclass(frozen=True)
class Measurement:
    """Sizes of every layer under one setting."""

    settings: Settings
    layers: tuple[LayerResult, ...]

    @cached_property
    def keys(self) -> Bytes:
        """All keys together."""
        return total(layer.keys for layer in self.layers)

    @cached_property
    def values(self) -> Bytes:
        """All values together."""
        return total(layer.values for layer in self.layers)

    @cached_property
    def totals(self) -> Bytes:
        """Keys and values of all layers."""
        return total((self.keys, self.values))

    @property
    def tensors(self) -> tuple[TensorResult, ...]:
        """Every tensor, keys before values in each layer."""
        return tuple(t for layer in self.layers for t in (layer.keys, layer.values))

    def to_json(self) -> dict[str, Any]:
        """Settings, layers and totals."""
        return {
            "settings": asdict(self.settings),
            "layers": [layer.to_json() for layer in self.layers],
            "totals": self.totals.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Measurement:
        """The inverse of `to_json`; totals are summed again."""
        layers = tuple(LayerResult.from_json(layer) for layer in data["layers"])
        return cls(pick(Settings, data["settings"]), layers)
