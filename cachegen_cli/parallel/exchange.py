"""What two processes tell each other: pickles through pipes, with arrays in a file both map.

A pipe would copy a tensor's codes four times; the file takes one copy there and one back.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import tempfile
from typing import IO, Any, NamedTuple

_HEADER = struct.Struct("<QQQ")  # bytes of the pickle, arrays, where the first begins
_LENGTH = struct.Struct("<Q")
_LARGE = 1 << 16  # bytes that are worth the file


class Message(NamedTuple):
    """A pickle, and the memory of what it leaves out."""

    pickled: bytes
    arrays: list[memoryview]


def message(value: Any) -> Message:
    """What is sent of a value; raises what pickle raises where it cannot be."""
    arrays: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    return Message(pickled, [array.raw() for array in arrays])


def light(value: Any) -> Any:
    """Long bytes as something that is not pickled itself; they arrive as bytes all the same."""
    return pickle.PickleBuffer(value) if isinstance(value, bytes) and len(value) > _LARGE else value


def shared_file() -> IO[bytes]:
    """A file without a name, in memory where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("cachegen"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


class Exchange:
    """One end, which sends and receives in turn.

    Args:
        keeps: whether arrays that were received stay where they are until the next come, so
            that what is sent meanwhile goes behind them; else they are copied.
    """

    def __init__(self, reader: IO[bytes], writer: IO[bytes], file: IO[bytes], keeps: bool) -> None:
        # the file itself, so that its number is not another's while a thread is at it
        self._reader, self._writer, self._file, self._keeps = reader, writer, file, keeps
        self._free = 0  # where what is sent may begin

    def send(self, sent: Message) -> None:
        """Raises OSError where the other end is gone, or the file cannot grow."""
        at = self._free
        for array in sent.arrays:
            rest = array  # written, not mapped: a full disk is then an error, not a signal
            while rest:
                written = os.pwrite(self._file.fileno(), rest, at)
                at, rest = at + written, rest[written:]
        self._writer.write(_HEADER.pack(len(sent.pickled), len(sent.arrays), self._free))
        self._writer.write(b"".join(_LENGTH.pack(array.nbytes) for array in sent.arrays))
        self._writer.write(sent.pickled)
        self._writer.flush()

    def receive(self) -> tuple[bytes, list[Any]]:
        """A pickle and its arrays' memory, for `pickle.loads`; raises EOFError at the end."""
        length, n, at = _HEADER.unpack(self._read(_HEADER.size))
        sizes = [_LENGTH.unpack(self._read(_LENGTH.size))[0] for _ in range(n)]
        pickled = self._read(length)
        if not any(sizes):
            return pickled, [b"" for _ in sizes]
        arrays: list[Any] = []
        whole = memoryview(mmap.mmap(self._file.fileno(), at + sum(sizes)))
        for size in sizes:
            arrays.append(whole[at : at + size] if self._keeps else bytes(whole[at : at + size]))
            at += size
        self._free = at if self._keeps else 0
        return pickled, arrays

    def _read(self, size: int) -> bytes:
        data = self._reader.read(size)
        if len(data) < size:
            raise EOFError
        return data
