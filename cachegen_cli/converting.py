"""Prompt caches of mlx-lm: captured to a file, and from one layout to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cachegen_cli.captures import Capture
from cachegen_cli.device import mx
from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.kvcache import FINGERPRINT, LAYOUTS, TOKENS, CacheFile, save_cache
from cachegen_cli.promptcache.described import describe
from cachegen_cli.results.cachefile import PromptCacheFile


def write_capture(capture: Capture, path: Path | str, layout: str = "C") -> PromptCacheFile:
    """Write a capture's live cache as mlx-lm's prompt cache, with the prompt's tokens and the
    model's fingerprint.

    Args:
        capture: made with ``keep_cache``.
        layout: as in `convert`.

    Raises:
        InputError: an entry that the layout has no place for.
        OutputError: it cannot be written.
        UsageError: the capture keeps no cache.
    """
    if capture.cache is None:
        raise UsageError("the capture keeps no cache", "make it with capture(..., keep_cache=True)")
    metadata = dict(capture.metadata) | {TOKENS: " ".join(map(str, capture.tokens))}
    metadata |= {FINGERPRINT: capture.fingerprint} if capture.fingerprint else {}
    # where MLX computes in float32 the cache does, too; it is written as the model has it
    dtype = getattr(mx, capture.model.dtype)
    save_cache(Path(path), capture.cache, metadata, layout, dtype)
    return describe(path, "capture", tuple(capture.notices))


def convert(source: Path | str, target: Path | str, layout: str = "C") -> PromptCacheFile:
    """Turn a prompt cache of any layout into another, cut to its tokens where that is possible.

    Args:
        layout: "B" for mlx-lm 0.19.1 to 0.31.3, "C" for 0.32.0 and later.

    Raises:
        InputError: the source is no prompt cache or leaves out which rows are tokens, or the layout
            has no place for an entry.
        OutputError: the target cannot be written.
        UsageError: no such layout.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"there is no layout '{layout}' to write", f"choose from {LAYOUTS}")
    file = CacheFile.open(Path(source))
    entries: list[Any] = list(file.entries)
    for index, entry in enumerate(entries):
        if hasattr(entry, "arrays"):
            raise InputError(
                f"cache entry {index} ({entry.cls}) cannot be converted: its class is not known",
                "convert with the version of mlx-lm that wrote it",
            )
        for kv in file.analysed(index):  # refuses what is not what it says
            kv.check_known("converted")
    save_cache(Path(target), entries, file.metadata, layout)
    return describe(target, "convert", tuple(file.header.notices))
