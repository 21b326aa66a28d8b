"""The models on this machine, to and from JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from cachegen_cli.results.picking import pick


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
