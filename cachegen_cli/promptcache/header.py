"""What the header of a prompt-cache file says: shapes and sizes, without MLX or the data."""

from __future__ import annotations

import json
import os
import struct
from math import prod
from pathlib import Path
from typing import Any

from cachegen_cli.errors import InputError
from cachegen_cli.promptcache.layouts import BrokenCache, State, parse, what_is_wrong

_LONGEST = 1 << 28  # bytes of a header
_SMALL = 1 << 12  # numbers of an array that is read with the header: lengths, names
_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8,
    "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "C64": 8,
}  # fmt: skip
_CODES = {"I64": "q", "I32": "i", "I16": "h", "I8": "b", "U64": "Q", "U32": "I", "U16": "H",
          "U8": "B", "F32": "f", "F64": "d", "BOOL": "?"}  # fmt: skip


class Described:
    """An array of a file: its shape and dtype; a few numbers of it can be read."""

    def __init__(self, path: Path, start: int, entry: dict[str, Any]) -> None:
        self.path, self.dtype = path, str(entry["dtype"])
        self.shape = tuple(map(int, entry["shape"]))
        if self.dtype not in _SIZES:
            raise BrokenCache(f"an array of the unknown dtype {self.dtype}")
        first, end = map(int, entry["data_offsets"])
        self.offset, self.nbytes = start + first, end - first
        if not 0 <= first <= end:
            raise BrokenCache("an array of it lies before its beginning")
        if self.nbytes != prod(self.shape) * _SIZES[self.dtype] or min(self.shape, default=0) < 0:
            raise BrokenCache(f"an array {self.shape} of {self.dtype} in {self.nbytes} bytes")

    def tolist(self) -> list[Any]:
        """Its numbers, if they are few."""
        n = prod(self.shape)
        if n > _SMALL:
            raise BrokenCache(f"{n} numbers where few are expected")
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return list(struct.unpack(f"<{n}{_CODES[self.dtype]}", file.read(self.nbytes)))

    def item(self) -> Any:
        """Its only number."""
        [value] = self.tolist()
        return value


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
    arrays = {name: Described(path, 8 + length, entry) for name, entry in table.items()}
    end = 0
    for one in sorted(arrays.values(), key=lambda one: (one.offset, one.nbytes)):
        if one.nbytes and one.offset < end:
            raise BrokenCache("arrays of it lie over each other")
        end = one.offset + one.nbytes
    if end > size:
        raise BrokenCache("it is cut")
    return size, metadata, arrays


def read_header(path: Path) -> tuple[str, dict[str, str], list[State], int]:
    """(layout, the user's metadata, entries with `Described` arrays, the file's length).

    Raises:
        InputError: there is no such file, or it is no prompt cache.
    """
    try:
        size, metadata, arrays = _table(path)
        layout, user, entries = parse(arrays, metadata)
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
    return layout, user, entries, size
