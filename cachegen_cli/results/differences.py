"""What differs between results of one kind, to and from JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

Number = int | float


@dataclass(frozen=True)
class Difference:
    """One figure of one row in every result; None where a result does not have it.

    Attributes:
        row: what it is of: "total", "layer 3", "bits 4 group 32".
        figure: its JSON key, with its unit.
        foot: whether it is a sum or mean over rows.
        wide: whether it is a detail.
    """

    row: str
    figure: str
    values: tuple[Number | None, ...]
    foot: bool = False
    wide: bool = False

    def less(self, reference: int) -> list[Number | None]:
        """Each value less the reference's."""
        base = self.values[reference]
        return [None if base is None or v is None else v - base for v in self.values]

    def ratios(self, reference: int) -> list[float | None]:
        """Each value in the reference's; None where that is 0."""
        base = self.values[reference]
        return [None if not base or v is None else v / base for v in self.values]


@dataclass(frozen=True)
class Differences:
    """The result of ``report`` on several results.

    Attributes:
        compared: the kind of the results.
        sources: their names.
        reference: which of them the others are held against.
        command: what was typed, or "".
        settings: what of model, prompt, settings and versions is not the same: one value a source.
    """

    kind: ClassVar = "differences"
    tool: dict[str, str]
    compared: str
    sources: tuple[str, ...]
    reference: int
    settings: dict[str, tuple[Any, ...]]
    rows: tuple[Difference, ...]
    command: str = ""

    def to_json(self) -> dict[str, Any]:
        """Sources, what was not the same, and one object a figure and row."""
        return {
            "tool": self.tool,
            "command": self.command,
            "compared": self.compared,
            "sources": list(self.sources),
            "reference": self.reference,
            "differing_settings": {key: list(values) for key, values in self.settings.items()},
            "rows": [
                {
                    "row": row.row,
                    "figure": row.figure,
                    "foot": row.foot,
                    "wide": row.wide,
                    "values": list(row.values),
                    "differences": row.less(self.reference),
                    "ratios": row.ratios(self.reference),
                }
                for row in self.rows
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Differences:
        """The inverse of `to_json`; differences and ratios are worked out again."""
        return cls(
            data["tool"],
            data["compared"],
            tuple(data["sources"]),
            data["reference"],
            {key: tuple(values) for key, values in data["differing_settings"].items()},
            tuple(
                Difference(r["row"], r["figure"], tuple(r["values"]), r["foot"], r["wide"])
                for r in data["rows"]
            ),
            data.get("command", ""),
        )
