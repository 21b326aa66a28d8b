"""The results of ``analyze``, ``quality`` and ``sweep``, to and from JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.run import Run


@dataclass(frozen=True)
class Analysis:
    """The result of ``analyze``."""

    kind: ClassVar = "analyze"
    run: Run
    measurement: Measurement

    def to_json(self) -> dict[str, Any]:
        """One flat object: the run's keys and the measurement's."""
        return self.run.to_json() | self.measurement.to_json()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Analysis:
        """The inverse of `to_json`."""
        return cls(Run.from_json(data), Measurement.from_json(data))


class QualityAnalysis(Analysis):
    """The result of ``quality``: an analysis whose measurement has its quality."""

    kind: ClassVar = "quality"


def pareto(points: Sequence[tuple[float, float] | None]) -> list[bool | None]:
    """Whether no other point has at most both of a point's numbers, and less of one.

    None for a point that is None.
    """
    return [
        None
        if point is None
        else not any(
            other and other != point and other[0] <= point[0] and other[1] <= point[1]
            for other in points
        )
        for point in points
    ]


@dataclass(frozen=True)
class Sweep:
    """The result of ``sweep``: one measurement a setting, of one prefill a text."""

    kind: ClassVar = "sweep"
    run: Run
    rows: tuple[Measurement, ...]

    @property
    def pareto(self) -> list[bool | None]:
        """Whether no other row has at most its bytes and its KL, and less of one.

        None where one of the two was not measured.
        """
        sizes = [row.totals.coded_bytes for row in self.rows]
        return pareto(
            [
                (size, row.quality.kl_nats) if row.quality and size is not None else None
                for size, row in zip(sizes, self.rows, strict=True)
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """The run's keys, and ``rows``."""
        rows = [
            row.to_json() | {"pareto_optimal": optimal}
            for row, optimal in zip(self.rows, self.pareto, strict=True)
        ]
        return self.run.to_json() | {"rows": rows}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Sweep:
        """The inverse of `to_json`."""
        return cls(Run.from_json(data), tuple(Measurement.from_json(r) for r in data["rows"]))
