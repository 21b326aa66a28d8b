"""What is shown of prompt-cache files."""

from __future__ import annotations

from typing import Any

from cachegen_cli.report.columns import held_tokens
from cachegen_cli.report.table import Column, View
from cachegen_cli.report.units import si_bytes, whole
from cachegen_cli.results.cachefile import PromptCacheFile
from cachegen_cli.results.spans import Places
from cachegen_cli.wording import counted

_LAYOUTS = {
    "A": "of mlx-lm before 0.19.1",
    "B": "of mlx-lm 0.19.1 to 0.31.3",
    "C": "of mlx-lm from 0.32.0 on",
}
_LATER = {"RotatingKVCache", "QuantizedKVCache"}  # what B holds otherwise until 0.28.0


def _versions(result: PromptCacheFile) -> str:
    written = result.layout == "B" and result.action != "inspect"
    if written and any(entry.cache in _LATER for entry in result.entries):
        return "of mlx-lm 0.28.1 to 0.31.3"
    return _LAYOUTS[result.layout]


def cache_file_view(result: PromptCacheFile, wide: bool) -> View:
    """A row an entry."""
    columns = (
        Column("entry", "entry", names=True),
        Column("cache", "cache", left=True, folds=True),
        Column("heads", "heads", whole),
        Column("key_dim", "K dim", whole),
        Column("value_dim", "V dim", whole),
        Column("dtype", "dtype", left=True),
        Column("tokens", "tokens", whole),
        Column("tokens_allocated", "alloc", whole),
        *((Column("tokens_seen", "seen", whole),) if wide else ()),
        Column("valid_bytes", "valid", si_bytes),
        *((Column("allocated_bytes", "allocated", si_bytes),) if wide else ()),
    )
    rows: list[dict[str, Any]] = [
        vars(entry)
        | {
            "entry": Places((entry.entry,)),
            "heads": entry.keys[1] if entry.keys else None,
            "key_dim": entry.keys[3] if entry.keys else None,
            "value_dim": entry.values[3] if entry.values else None,
        }
        for entry in result.entries
    ]
    metadata = ", ".join(f"{k} {v}" for k, v in result.metadata.items() if len(v) <= 60)
    notes = [
        f"{result.file}: {si_bytes(result.file_bytes)}, layout {result.layout}, "
        f"{_versions(result)}; tokens' rows and states take {si_bytes(result.valid_bytes)} "
        f"of {si_bytes(result.allocated_bytes)}. {held_tokens(result.prompt_tokens)}",
        *([f"Metadata: {metadata}."] if metadata else []),
        *(f"Warning: {notice.message}." for notice in result.warnings),
    ]
    title = f"Prompt cache of {counted(len(result.entries), 'entry')}"
    return View(title, columns, rows, notes=notes)
