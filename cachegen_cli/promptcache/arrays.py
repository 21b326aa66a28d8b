"""Arrays of a safetensors file as its header has them; their numbers are read in pieces."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from cachegen_cli.promptcache.layouts import BrokenCache

Read = Callable[[int, int], bytes]
PIECE = 1 << 20  # bytes that are read at once
_SMALL = 1 << 12  # numbers of an array that is read with the header: lengths, names
_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8,
    "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "C64": 8,
}  # fmt: skip
_CODES = {"I64": "q", "I32": "i", "I16": "h", "I8": "b", "U64": "Q", "U32": "I", "U16": "H",
          "U8": "B", "F32": "f", "F64": "d", "BOOL": "?"}  # fmt: skip


class Described:
    """An array of a file: its name, shape and dtype; bytes of it can be read."""

    def __init__(self, path: Path, name: str, start: int, entry: dict[str, Any]) -> None:
        self.path, self.name, self.dtype = path, name, str(entry["dtype"])
        self.shape = tuple(map(int, entry["shape"]))
        if self.dtype not in _SIZES:
            raise BrokenCache(f"an array of the unknown dtype {self.dtype}")
        first, end = map(int, entry["data_offsets"])
        self.offset, self.nbytes = start + first, end - first
        if not 0 <= first <= end:
            raise BrokenCache("an array of it lies before its beginning")
        if self.nbytes != prod(self.shape) * _SIZES[self.dtype] or min(self.shape, default=0) < 0:
            raise BrokenCache(f"an array {self.shape} of {self.dtype} in {self.nbytes} bytes")

    @contextmanager
    def reader(self) -> Iterator[Read]:
        """Open the file; give what returns bytes from one place to another, or to the end."""
        with self.path.open("rb") as file:

            def read(start: int, end: int) -> bytes:
                file.seek(self.offset + start)
                return file.read(min(end, self.nbytes) - start)

            yield read

    def read(self, start: int, end: int) -> bytes:
        """Return bytes from one place to another, or to the end."""
        with self.reader() as read:
            return read(start, end)

    def tolist(self) -> list[Any]:
        """Return its numbers, if they are few."""
        n = prod(self.shape)
        if n > _SMALL:
            raise BrokenCache(f"{n} numbers where few are expected")
        return list(struct.unpack(f"<{n}{_CODES[self.dtype]}", self.read(0, self.nbytes)))

    def item(self) -> Any:
        """Return its only number."""
        [value] = self.tolist()
        return value


def rows_written(arrays: Sequence[Described]) -> int:
    """Count rows up to the last that is not zero in all arrays [batch, heads, rows, width].

    Reads from the end, so that it takes long only where much is zero. Padding is written as
    zeros without a sign, whatever the dtype.
    """
    end = 0
    for array in arrays:
        batch, heads, rows, width = array.shape
        size = width * _SIZES[array.dtype]
        with array.reader() as read:
            for head in range(batch * heads if size else 0):
                if end == rows:
                    return end
                end = _last_row(read, head * rows, rows, end, size)
    return end


def _last_row(read: Read, first: int, rows: int, least: int, size: int) -> int:
    """Count rows of ``size`` bytes of the head that begins at row ``first``; at least ``least``."""
    start, end, piece = (first + least) * size, (first + rows) * size, size
    while end > start:
        begin = max(start, end - piece)
        written = read(begin, end).rstrip(b"\0")
        if written:
            return -(-(begin + len(written)) // size) - first
        end, piece = begin, min(2 * piece, PIECE)
    return least
