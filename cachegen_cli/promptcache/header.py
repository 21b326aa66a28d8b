"""What a prompt-cache file says of itself: shapes, sizes and tokens, without MLX."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from cachegen_cli.errors import InputError
from cachegen_cli.promptcache.arrays import Described
from cachegen_cli.promptcache.counting import settle
from cachegen_cli.promptcache.layouts import BrokenCache, State, parse, what_is_wrong
from cachegen_cli.results.run import Notice

_LONGEST = 1 << 28  # bytes of a header


@dataclass(frozen=True)
class Header:
    """What a file's header says.

    Attributes:
        layout: "A", "B" or "C".
        metadata: the user's.
        entries: with `Described` arrays.
        file_bytes: the file's length.
        notices: how it was found what entries have seen, where the layout does not say it.
    """

    layout: str
    metadata: dict[str, str]
    entries: list[State]
    file_bytes: int
    notices: list[Notice]


def _table(path: Path) -> tuple[int, dict[str, str], dict[str, Described]]:
    """(the file's length, its metadata, its arrays)."""
    size = os.path.getsize(path)
    with path.open("rb") as file:
        if size < 8:
            raise BrokenCache("it is too short for a safetensors file")
        [length] = struct.unpack("<Q", file.read(8))
        if length > min(_LONGEST, size - 8):
            raise BrokenCache("it is cut, or no safetensors file")
        try:
            table = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise BrokenCache("its header is no JSON") from None
    if not isinstance(table, dict):
        raise BrokenCache("its header is no table of arrays")
    metadata = table.pop("__metadata__", None) or {}
    if not all(isinstance(value, str) for value in metadata.values()):
        raise BrokenCache("its metadata are not all texts")
    arrays = {name: Described(path, name, 8 + length, entry) for name, entry in table.items()}
    end = 0
    for one in sorted(arrays.values(), key=lambda one: (one.offset, one.nbytes)):
        if one.nbytes and one.offset < end:
            raise BrokenCache("arrays of it lie over each other")
        end = one.offset + one.nbytes
    if end > size:
        raise BrokenCache("it is cut")
    return size, metadata, arrays


def read_header(path: Path) -> Header:
    """Read a file's header, and the end of buffers whose tokens it does not count.

    Raises:
        InputError: there is no such file, or it is no prompt cache.
    """
    try:
        size, metadata, arrays = _table(path)
        layout, user, entries = parse(arrays, metadata)
        return Header(layout, user, entries, size, settle(entries))
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be read: {error.strerror}", "name a prompt-cache file"
        ) from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error,
            RecursionError) as error:  # fmt: skip
        raise InputError(
            f"'{path}' is not a prompt cache: {what_is_wrong(error)}",
            "name a .cgkv file, or one that mlx_lm.cache_prompt or 'cachegen capture' wrote",
        ) from error
