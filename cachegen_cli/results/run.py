"""What is said of a model's run beside its sizes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cachegen_cli.results.picking import pick


@dataclass(frozen=True)
class Skipped:
    """A cache entry that was not analysed, the bytes that it allocates, and why."""

    entry: int
    cache: str
    bytes: int
    reason: str


@dataclass(frozen=True)
class Notice:
    """A warning: ``code`` for machines, ``message`` for people."""

    code: str
    message: str


@dataclass(frozen=True)
class ModelInfo:
    """The model that ran. Heads and head_dim are lists by layer where layers differ."""

    id: str
    source: str
    layers: int
    kv_heads: int | list[int]
    head_dim: int | list[int]
    dtype: str
    compute_dtype: str


@dataclass(frozen=True)
class PromptInfo:
    """The prompt: ``tokens`` analysed, of ``tokens_given`` before ``--max-prompt-tokens``."""

    source: str
    tokens: int
    sha256: str
    tokens_given: int
    chat: bool


@dataclass(frozen=True)
class Run:
    """What every result of a model's run has in common."""

    tool: dict[str, str]
    model: ModelInfo
    prompt: PromptInfo
    skipped: tuple[Skipped, ...]
    warnings: tuple[Notice, ...]
    timing: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """The run's keys, to stand beside a result's own."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        """The inverse of `to_json`."""
        return cls(
            tool=data["tool"],
            model=pick(ModelInfo, data["model"]),
            prompt=pick(PromptInfo, data["prompt"]),
            skipped=tuple(pick(Skipped, s) for s in data["skipped"]),
            warnings=tuple(pick(Notice, n) for n in data["warnings"]),
            timing=data["timing"],
        )
