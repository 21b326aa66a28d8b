"""The form of every result's JSON: a schema number, the kind, and the result's own keys."""

from __future__ import annotations

import importlib
import json
from typing import Any, ClassVar, Protocol, Self

from cachegen_cli.errors import InputError

SCHEMA = 1

# kind -> its class, imported when one is read: `inspect` needs a single one of them
KINDS = {
    "analyze": ("analyses", "Analysis"),
    "quality": ("analyses", "QualityAnalysis"),
    "sweep": ("analyses", "Sweep"),
    "sensitivity": ("planning", "Sensitivity"),
    "plan": ("planning", "Plan"),
    "compare": ("comparison", "Comparison"),
    "insights": ("insights", "Insights"),
    "calibrate": ("profile", "Calibration"),
    "models": ("models", "ModelList"),
    "verify": ("files", "Verification"),
    "file": ("files", "PackedFile"),
    "files": ("files", "PackedFiles"),
    "differences": ("differences", "Differences"),
    "prompt-cache": ("cachefile", "PromptCacheFile"),
}


class Result(Protocol):
    """What a command found."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """The result's own keys, of JSON's types alone."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""


def to_json(result: Result) -> str:
    """A result as JSON text: the contract that other tools read."""
    data = {"schema": SCHEMA, "kind": result.kind} | result.to_json()
    # ASCII, so that no terminal's encoding can lose a character
    return json.dumps(data, indent=2, allow_nan=False)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def from_json(text: str) -> Result:
    """A result from `to_json`'s text.

    Raises:
        InputError: not JSON, not a result, or of a later schema.
    """
    try:
        data = json.loads(text, parse_constant=_refused)
        if data["schema"] > SCHEMA:
            raise InputError(
                f"the result has schema {data['schema']}, this version reads up to {SCHEMA}",
                "update cachegen",
            )
        module, name = KINDS[data["kind"]]
        kind: type[Result] = getattr(
            importlib.import_module(f"cachegen_cli.results.{module}"), name
        )
        return kind.from_json(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            "this is not a result of cachegen", "save one with: cachegen analyze -o result.json"
        ) from None
