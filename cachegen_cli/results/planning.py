"""Which tensors a model is sensitive in, and the widths that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import sqrt
from typing import Any, ClassVar

from cachegen_cli.results.candidates import Candidate, Target, best_within
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.picking import pick
from cachegen_cli.results.quality import Quality, margin
from cachegen_cli.results.run import Run
from cachegen_cli.results.settings import PlannedWidths, Settings
from cachegen_cli.results.spans import Entry, Placed


@dataclass(frozen=True)
class TensorSensitivity(Placed):
    """KL when only one layer's keys, or only its values, are compressed.

    Attributes:
        tensor: "keys" or "values".
        kl_nats, kl_nats_stderr, kl_nats_low, kl_nats_high: as in `Quality`.
        layers: where several are coded as one, all of them.
    """

    layer: Entry
    cache: str
    tensor: str
    kl_nats: float
    kl_nats_stderr: float | None
    layers: tuple[Entry, ...] = ()
    kl_nats_low: float | None = None
    kl_nats_high: float | None = None

    @property
    def kl_nats_margin(self) -> float | None:
        """Return half of the 95 % interval of the KL."""
        return margin(self.kl_nats_low, self.kl_nats_high)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TensorSensitivity:
        """The inverse of `dataclasses.asdict`."""
        return pick(cls, data | {"layers": tuple(data.get("layers", ()))})


@dataclass(frozen=True)
class Sensitivity:
    """The result of ``sensitivity``: a row a tensor, keys before values in each layer.

    Attributes:
        together: quality with all tensors compressed at once.
    """

    kind: ClassVar = "sensitivity"
    run: Run
    settings: Settings
    rows: tuple[TensorSensitivity, ...]
    together: Quality

    @property
    def sum_kl_nats(self) -> float:
        """What all tensors would come to if their effects added up."""
        return sum(row.kl_nats for row in self.rows)

    @property
    def by_layer(self) -> list[float]:
        """KL of keys and values of each layer, added."""
        return [a.kl_nats + b.kl_nats for a, b in zip(*self._tensors, strict=True)]

    @property
    def depth_correlation(self) -> float | None:
        """Spearman's rank correlation of a layer's KL and its depth; negative: shallow is worse."""
        return rank_correlation(self.by_layer)

    @property
    def key_depth_correlation(self) -> float | None:
        """The same for keys alone."""
        return rank_correlation([row.kl_nats for row in self._tensors[0]])

    @property
    def value_depth_correlation(self) -> float | None:
        """The same for values alone."""
        return rank_correlation([row.kl_nats for row in self._tensors[1]])

    @property
    def depth_correlation_needed(self) -> float | None:
        """Size beyond which a correlation of so many layers is unlikely to be chance (5 %).

        None below 5 layers, where no order is.
        """
        n = len(self.by_layer)
        return 1.96 / sqrt(n - 1) if n > 4 else None

    @property
    def _tensors(self) -> tuple[tuple[TensorSensitivity, ...], tuple[TensorSensitivity, ...]]:
        return self.rows[::2], self.rows[1::2]

    def to_json(self) -> dict[str, Any]:
        """The run's keys, rows, and what follows from them."""
        derived = (
            "sum_kl_nats", "depth_correlation", "key_depth_correlation",
            "value_depth_correlation", "depth_correlation_needed",
        )  # fmt: skip
        return self.run.to_json() | {
            "settings": asdict(self.settings),
            "rows": [asdict(row) for row in self.rows],
            "together": self.together.to_json(),
            **{name: getattr(self, name) for name in derived},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Sensitivity:
        """The inverse of `to_json`."""
        return cls(
            Run.from_json(data),
            Settings.from_json(data["settings"]),
            tuple(TensorSensitivity.from_json(row) for row in data["rows"]),
            pick(Quality, data["together"]),
        )


@dataclass(frozen=True)
class Rival:
    """The uniform width nearest to a plan's bytes, and the plan against uniform widths.

    Attributes:
        kl_ratio: the plan's KL by that of uniform widths at its bytes: log KL interpolated between
            the widths of more and of less bytes, the wider one's where there are not both.
        low, high: ends of the 95 % interval of that, positions resampled for all together; None
            where there are too few.
    """

    name: str
    kl_ratio: float
    low: float | None
    high: float | None

    @property
    def is_beaten(self) -> bool:
        """Return whether the plan is better beyond the error."""
        return self.high is not None and self.high < 1


@dataclass(frozen=True)
class Plan:
    """The result of ``plan``: a width for each layer's keys and values.

    Attributes:
        choices: the widths to choose from.
        sensitivity_bits: the width at which each tensor's sensitivity was measured.
        continuations: how often a text's continuation was read on a compressed cache.
        predicted_kl_nats: what the sensitivities promised for the plan; None where there was
            no choice.
        sensitivities: of each tensor, keys before values; empty where there was no choice.
        measurement: the plan, measured.
        uniform: every width of the choices for all tensors.
        depth: the widest ``depth`` schedule of the plan's bytes, if there is one.
        rival: the uniform width that the plan has to beat; None where none fits into its bytes.

    Others have the plan's bytes if they take at most 1 % more.
    """

    kind: ClassVar = "plan"
    run: Run
    target: Target
    choices: tuple[int, ...]
    sensitivity_bits: int
    continuations: int
    predicted_kl_nats: float | None
    sensitivities: tuple[TensorSensitivity, ...]
    measurement: Measurement
    uniform: tuple[Candidate, ...]
    depth: Candidate | None
    rival: Rival | None = None

    @property
    def key_bits(self) -> tuple[int, ...]:
        """The chosen width of each entry's keys."""
        return tuple(layer.keys.bits for layer in self.measurement.layers)

    @property
    def value_bits(self) -> tuple[int, ...]:
        """The chosen width of each entry's values."""
        return tuple(layer.values.bits for layer in self.measurement.layers)

    @property
    def best_uniform(self) -> Candidate | None:
        """Return the uniform width of lowest KL in the plan's bytes."""
        return best_within(self.uniform, self.measurement.totals.coded_bytes or 0)

    @property
    def uniform_kl_nats_at_same_bytes(self) -> float | None:
        """KL of uniform widths at the plan's bytes: log KL interpolated between two of them."""
        size = self.measurement.totals.coded_bytes or 0
        ordered = sorted(self.uniform, key=lambda one: one.coded_bytes)
        for low, high in pairwise(ordered):
            kls = (low.quality.kl_nats, high.quality.kl_nats)
            if low.coded_bytes <= size <= high.coded_bytes and min(kls) > 0:
                share = (size - low.coded_bytes) / (high.coded_bytes - low.coded_bytes or 1)
                return float(kls[0] ** (1 - share) * kls[1] ** share)
        return None

    def widths(self, source: str) -> PlannedWidths:
        """The widths as settings hold them."""
        made_with = self.measurement.settings
        return PlannedWidths(
            source,
            self.run.model.id,
            self.key_bits,
            self.value_bits,
            made_with.group_size,
            made_with.keep_first,
            made_with.keep_last,
        )

    def to_json(self) -> dict[str, Any]:
        """The run's keys, the measurement's, the widths, and what they are compared with."""
        best = self.best_uniform
        return (
            self.run.to_json()
            | self.measurement.to_json()
            | {
                "target": asdict(self.target),
                "choices": list(self.choices),
                "key_bits": list(self.key_bits),
                "value_bits": list(self.value_bits),
                "sensitivity_bits": self.sensitivity_bits,
                "continuations": self.continuations,
                "predicted_kl_nats": self.predicted_kl_nats,
                "uniform_kl_nats_at_same_bytes": self.uniform_kl_nats_at_same_bytes,
                "best_uniform": best.name if best else None,
                "sensitivities": [asdict(row) for row in self.sensitivities],
                "uniform": [one.to_json() for one in self.uniform],
                "depth": self.depth.to_json() if self.depth else None,
                "rival": asdict(self.rival) if self.rival else None,
                "better_than_uniform": self.rival.is_beaten if self.rival else None,
            }
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The inverse of `to_json`."""
        own = {
            "run": Run.from_json(data),
            "target": pick(Target, data["target"]),
            "choices": tuple(data["choices"]),
            "sensitivities": tuple(TensorSensitivity.from_json(s) for s in data["sensitivities"]),
            "measurement": Measurement.from_json(data),
            "uniform": tuple(Candidate.from_json(one) for one in data["uniform"]),
            "depth": Candidate.from_json(data["depth"]) if data["depth"] else None,
            "rival": pick(Rival, data["rival"]) if data["rival"] else None,
        }
        return pick(cls, data | own)


def rank_correlation(values: Sequence[float]) -> float | None:
    """Spearman's correlation of values with their order; None where all are equal or too few."""
    n = len(values)
    places = [
        sum(v < value for v in values) + sum(v == value for v in values) / 2 for value in values
    ]
    mean = sum(places) / max(n, 1)
    order = [i - (n - 1) / 2 for i in range(n)]
    spread = sqrt(sum((p - mean) ** 2 for p in places) * sum(o * o for o in order))
    if n < 3 or not spread:
        return None
    return sum((p - mean) * o for p, o in zip(places, order, strict=True)) / spread
