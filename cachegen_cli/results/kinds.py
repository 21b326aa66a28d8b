"""The result of each command, to and from JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from cachegen_cli.errors import InputError
from cachegen_cli.results.cachefile import PromptCacheFile
from cachegen_cli.results.comparison import Comparison
from cachegen_cli.results.files import PackedFile, PackedFiles, Verification
from cachegen_cli.results.insights import Insights
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.picking import pick
from cachegen_cli.results.planning import Plan, Sensitivity
from cachegen_cli.results.profile import Calibration
from cachegen_cli.results.run import Run

SCHEMA = 1


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


@dataclass(frozen=True)
class Sweep:
    """The result of ``sweep``: one measurement a setting, of one prefill a text."""

    kind: ClassVar = "sweep"
    run: Run
    rows: tuple[Measurement, ...]

    @property
    def pareto(self) -> list[bool | None]:
        """Whether no other row has at most its bytes and its KL, and less of one.

        None where no quality was measured.
        """
        points = [
            (row.totals.coded_bytes or 0, row.quality.kl_nats) if row.quality else None
            for row in self.rows
        ]
        return [
            None
            if point is None
            else not any(
                other and other != point and other[0] <= point[0] and other[1] <= point[1]
                for other in points
            )
            for point in points
        ]

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


@dataclass(frozen=True)
class ModelRow:
    """A model on this machine and its 16-bit KV cache, as its own cache classes lay it out.

    Attributes:
        kv_heads, head_dim: of the entries that hold keys and values; lists where they differ.
        bytes_per_token: keys and values of one more token while no window is full.
        bytes_8k, bytes_32k, bytes_128k: the cache at that many tokens, state included.
        problem: why the sizes are not known, or "".
    """

    id: str
    source: str
    layers: int | None = None
    kv_heads: int | list[int] | None = None
    head_dim: int | list[int] | None = None
    context: int | None = None
    bytes_per_token: int | None = None
    bytes_8k: int | None = None
    bytes_32k: int | None = None
    bytes_128k: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class ModelList:
    """The result of ``models``."""

    kind: ClassVar = "models"
    tool: dict[str, str]
    models: tuple[ModelRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Tool versions and one object a model."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ModelList:
        """The inverse of `to_json`."""
        return cls(data["tool"], tuple(pick(ModelRow, m) for m in data["models"]))


Result = (
    Analysis
    | Sweep
    | Sensitivity
    | Plan
    | Insights
    | Comparison
    | ModelList
    | PackedFile
    | PackedFiles
    | Verification
    | Calibration
    | PromptCacheFile
)
KINDS: dict[str, type[Result]] = {
    kind.kind: kind
    for kind in (
        Analysis, QualityAnalysis, Sweep, Sensitivity, Plan, Insights, Comparison, ModelList,
        PackedFile, PackedFiles, Verification, Calibration, PromptCacheFile,
    )
}  # fmt: skip


def to_json(result: Result) -> str:
    """A result as JSON text: the contract that other tools read."""
    data = {"schema": SCHEMA, "kind": result.kind} | result.to_json()
    # ASCII, so that no terminal's encoding can lose a character
    return json.dumps(data, indent=2, allow_nan=False)


def from_json(text: str) -> Result:
    """A result from `to_json`'s text.

    Raises:
        InputError: not JSON, not a result, or of a later schema.
    """
    try:
        data = json.loads(text)
        if data["schema"] > SCHEMA:
            raise InputError(
                f"the result has schema {data['schema']}, this version reads up to {SCHEMA}",
                "update cachegen",
            )
        return KINDS[data["kind"]].from_json(data)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(
            "this is not a result of cachegen", "save one with: cachegen analyze -o result.json"
        ) from None
