"""A prompt-cache file's entries from its header, and from the ends of what that does not count."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from cachegen_cli.errors import InputError
from cachegen_cli.promptcache.counting import ROWS_UNKNOWN
from cachegen_cli.promptcache.header import read_header
from cachegen_cli.promptcache.layouts import TOKENS, BrokenCache, State, what_is_wrong
from cachegen_cli.results.cachefile import CacheEntry, PromptCacheFile
from cachegen_cli.results.run import Notice
from cachegen_cli.results.spans import Entry
from cachegen_cli.wording import counted

_ROWS = 2  # axis of the tokens


def describe(
    path: Path | str, action: str = "inspect", warnings: tuple[Notice, ...] = ()
) -> PromptCacheFile:
    """What a file holds.

    Args:
        action: the command that asks.
        warnings: what it has to say.

    Raises:
        InputError: there is no such file, or it is no prompt cache.
    """
    header = read_header(Path(path))
    tokens = header.metadata.get(TOKENS, "").split()
    if tokens and all(token.isdecimal() for token in tokens):
        del header.metadata[TOKENS]
    else:  # somebody else's
        tokens = []
    try:
        entries = [e for place, state in enumerate(header.entries) for e in _entries(place, state)]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(
            f"'{path}' is not a prompt cache: {what_is_wrong(error)}", "get it again"
        ) from error
    return PromptCacheFile(
        action,
        str(path),
        header.layout,
        header.file_bytes,
        header.metadata,
        len(tokens),
        tuple(entries),
        (*warnings, *header.notices),
    )


def _entries(place: Entry, state: State) -> list[CacheEntry]:
    own = vars(state)
    if "caches" in own:
        return [
            entry
            for part, inner in enumerate(own["caches"])
            for entry in _entries(f"{place}/{part}", inner)
        ]
    allocated = _bytes(own)
    keys: Any = own.get("keys")
    values: Any = own.get("values")
    if keys is None:
        nothing = (None, None, "", None, None, None)
        return [CacheEntry(place, state.cls, *nothing, allocated, allocated)]
    packed = isinstance(keys, list | tuple)
    first = keys[0] if packed else keys
    seen = _int(own["offset"])
    held = seen - _int(own.get("start_position", 0))
    rows = min(_int(own["_idx"]) if state.cls == "BatchKVCache" else held, first.shape[_ROWS])
    if rows < 0 or (held > rows and "max_size" not in own):
        raise BrokenCache(f"{counted(seen, 'token')} in {counted(rows, 'row')}")
    if "max_size" in own:
        rows = min(rows, _int(own["max_size"]))
    whole = first.shape[0] * first.shape[_ROWS]
    padded = sum(max(0, n) for n in own["left_padding"].tolist()) if "left_padding" in own else 0
    valid = allocated * max(0, first.shape[0] * rows - padded) // whole if whole else 0
    bits = _int(own.get("bits", 0))
    return [
        CacheEntry(
            place,
            state.cls,
            _shape(keys, rows, bits),
            _shape(values, rows, bits),
            f"{bits} bits" if packed else str(first.dtype),
            None if own.get("unknown") == ROWS_UNKNOWN else rows,
            first.shape[_ROWS],
            None if own.get("unknown") else seen,
            valid,
            allocated,
        )
    ]


def _shape(x: Any, rows: int, bits: int) -> tuple[int, ...]:
    """[batch, heads, tokens, head_dim]; of packed codes that of what they stand for."""
    first = x[0] if isinstance(x, list | tuple) else x
    batch, heads, _, width = first.shape
    return batch, heads, rows, width * 32 // bits if bits else width


def _int(value: Any) -> int:
    return int(max(value.tolist())) if hasattr(value, "tolist") else int(value)


def _bytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_bytes(part) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(_bytes(part) for part in value)
    shape = getattr(value, "shape", None)
    # single numbers and names are no room for tokens
    return int(value.nbytes) if shape is not None and prod(shape) and len(shape) > 1 else 0
