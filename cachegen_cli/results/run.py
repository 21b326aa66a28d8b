"""What is said of a model's run beside its sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cachegen_cli.results.picking import pick
from cachegen_cli.results.spans import Entry


@dataclass(frozen=True)
class Skipped:
    """A cache entry that was not analysed, the bytes that it allocates, and why."""

    entry: Entry
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
    """A text: ``tokens`` analysed, of ``tokens_given`` before any cut.

    Attributes:
        sha256: of the text in UTF-8, of a prompt cache of its token ids; "" if not known.
        continuation_tokens: tokens after them on which quality is measured.
    """

    source: str
    tokens: int
    sha256: str
    tokens_given: int
    chat: bool
    continuation_tokens: int = 0

    @classmethod
    def of(cls, prompts: Sequence[PromptInfo]) -> PromptInfo:
        """One text's own, or the sums of several, with the hash of all their hashes."""
        if len(prompts) == 1:
            return prompts[0]
        known = [prompt.sha256 for prompt in prompts]
        return cls(
            source=f"{len(prompts)} texts",
            tokens=sum(prompt.tokens for prompt in prompts),
            sha256=hashlib.sha256("".join(known).encode()).hexdigest() if all(known) else "",
            tokens_given=sum(prompt.tokens_given for prompt in prompts),
            chat=prompts[0].chat,
            continuation_tokens=sum(prompt.continuation_tokens for prompt in prompts),
        )


@dataclass(frozen=True)
class Run:
    """What every result of a model's run has in common.

    Attributes:
        prompts: each text, where there are several; `prompt` is then their sum.
        command: what was typed, or "" where no command was.
    """

    tool: dict[str, str]
    model: ModelInfo
    prompt: PromptInfo
    skipped: tuple[Skipped, ...]
    warnings: tuple[Notice, ...]
    timing: dict[str, float]
    prompts: tuple[PromptInfo, ...] = ()
    command: str = ""

    def with_warnings(self, more: Sequence[Notice]) -> Run:
        """The run with more warnings."""
        return replace(self, warnings=(*self.warnings, *more))

    def with_timing(self, more: dict[str, float]) -> Run:
        """The run with more times."""
        return replace(self, timing=self.timing | more)

    @property
    def messages(self) -> list[str]:
        """The warnings for people."""
        return [notice.message for notice in self.warnings]

    @classmethod
    def over(cls, runs: Sequence[Run]) -> Run:
        """The runs over several texts as one: sums, and each kind of warning once."""
        first = runs[0]
        if len(runs) == 1:
            return first
        prompts = tuple(run.prompt for run in runs)
        return replace(
            first,
            prompt=PromptInfo.of(prompts),
            prompts=prompts,
            skipped=_summed([entry for run in runs for entry in run.skipped]),
            warnings=_first_of_each_kind([run.warnings for run in runs]),
            timing={
                name: round(sum(run.timing[name] for run in runs), 6)
                for name in first.timing
                if all(name in run.timing for run in runs)  # of some alone it is no sum
            },
        )

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
            prompts=tuple(pick(PromptInfo, p) for p in data.get("prompts", ())),
            command=data.get("command", ""),
        )


def _summed(skipped: Sequence[Skipped]) -> tuple[Skipped, ...]:
    """Each entry once, with its bytes over all texts."""
    sums: dict[tuple[Entry, str, str], int] = {}
    for s in skipped:
        key = (s.entry, s.cache, s.reason)
        sums[key] = sums.get(key, 0) + s.bytes
    return tuple(Skipped(entry, cache, size, why) for (entry, cache, why), size in sums.items())


def _first_of_each_kind(by_text: Sequence[Sequence[Notice]]) -> tuple[Notice, ...]:
    """The warnings of the first text that has any of their code, and how many more have."""
    kept: list[Notice] = []
    for code in dict.fromkeys(notice.code for notices in by_text for notice in notices):
        having = [found for notices in by_text if (found := [n for n in notices if n.code == code])]
        more = len(having) - 1
        differ = any(found != having[0] for found in having)
        suffix = f" (so too for {more} more)" if more and differ else ""
        kept += [Notice(code, notice.message + suffix) for notice in having[0]]
    return tuple(kept)
