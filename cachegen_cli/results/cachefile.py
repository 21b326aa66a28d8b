"""What is said of a prompt-cache file of mlx-lm."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from cachegen_cli.results.picking import pick
from cachegen_cli.results.run import Notice
from cachegen_cli.results.spans import Entry


@dataclass(frozen=True)
class CacheEntry:
    """An entry of a file.

    Attributes:
        entry, cache: its place and class.
        keys, values: shapes of the tokens' rows [batch, heads, tokens, head_dim]; None where it
            has none.
        dtype: of the keys, as the file names it.
        tokens, tokens_allocated: rows of tokens, None where the file does not tell them from its
            padding, and rows that it has room for.
        tokens_seen: that went through; None where it has none, or that is not known.
        valid_bytes, allocated_bytes: of the rows that are read as tokens', and of all arrays.
    """

    entry: Entry
    cache: str
    keys: tuple[int, ...] | None
    values: tuple[int, ...] | None
    dtype: str
    tokens: int | None
    tokens_allocated: int | None
    tokens_seen: int | None
    valid_bytes: int
    allocated_bytes: int


@dataclass(frozen=True)
class PromptCacheFile:
    """The result of ``inspect`` of a prompt cache, and of ``capture`` and ``convert``.

    Attributes:
        action: the command.
        file: its path.
        layout: "A", "B" or "C".
        file_bytes: its length.
        metadata: the user's strings.
        prompt_tokens: token ids in the metadata.
        warnings: of what made the file, and how it was found which rows are tokens where the
            layout does not say it.
    """

    kind: ClassVar = "prompt-cache"
    action: str
    file: str
    layout: str
    file_bytes: int
    metadata: dict[str, str]
    prompt_tokens: int
    entries: tuple[CacheEntry, ...]
    warnings: tuple[Notice, ...] = ()

    @property
    def messages(self) -> list[str]:
        """The warnings for people."""
        return [notice.message for notice in self.warnings]

    @property
    def valid_bytes(self) -> int:
        """Of all tokens' rows and states."""
        return sum(entry.valid_bytes for entry in self.entries)

    @property
    def allocated_bytes(self) -> int:
        """Of all arrays."""
        return sum(entry.allocated_bytes for entry in self.entries)

    def to_json(self) -> dict[str, Any]:
        """One flat object."""
        return asdict(self) | {
            "valid_bytes": self.valid_bytes,
            "allocated_bytes": self.allocated_bytes,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PromptCacheFile:
        """The inverse of `to_json`."""
        entries = [
            entry | {name: tuple(entry[name]) if entry[name] else None for name in _SHAPES}
            for entry in data["entries"]
        ]
        own = {
            "entries": tuple(pick(CacheEntry, entry) for entry in entries),
            "warnings": tuple(pick(Notice, notice) for notice in data.get("warnings", ())),
        }
        return pick(cls, data | own)


_SHAPES = ("keys", "values")
