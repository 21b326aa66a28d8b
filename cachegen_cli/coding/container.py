"""The .cgkv file: a preamble, a section for each tensor, and a JSON header behind them.

The header stands at the end so that sections can be written one by one; the preamble is
filled in last and says where it is. docs/format.md lays the file out byte by byte.
Reading treats a file as hostile: every length is held against the file's size before
anything is allocated, and every part has a checksum.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

from cachegen_cli.coding.sections import Section
from cachegen_cli.errors import InputError

SUFFIX = ".cgkv"
MAGIC = b"CGKV"
VERSION = 2
READS = (1, 2)  # in 1 every tensor is of the scheme group
# magic, version, reserved, header offset, header length, header checksum
_PREAMBLE = struct.Struct("<4sHHQII")
PREAMBLE_BYTES = _PREAMBLE.size
MAX_HEADER = 1 << 24  # bytes of JSON text; a million token ids take half of it
TENSORS = ("keys", "values")
CLASSES = ("KVCache", "ConcatenateKVCache", "RotatingKVCache", "ChunkedKVCache")


def coder_version() -> str:
    """constriction's minor version, which decides the bits of a stream."""
    return ".".join(version("constriction").split(".")[:2])


class Writer:
    """Writes sections in order, then the header. The file is valid only after `finish`."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.offset = file.write(bytes(PREAMBLE_BYTES))

    def add(self, section: Section) -> dict[str, int]:
        """Append a section; returns where it is: offset, length and crc32."""
        data = section.to_bytes()
        place = {"offset": self.offset, "length": len(data), "crc32": zlib.crc32(data)}
        self.offset += self.file.write(data)
        return place

    def finish(self, header: dict[str, Any]) -> int:
        """Write the header and the preamble; returns the file's length."""
        data = header_bytes(header)
        self.file.write(data)
        self.file.seek(0)
        self.file.write(_PREAMBLE.pack(MAGIC, VERSION, 0, self.offset, len(data), zlib.crc32(data)))
        return self.offset + len(data)


def header_bytes(header: dict[str, Any]) -> bytes:
    """The header as it stands in a file: JSON, deflated.

    Raises:
        InputError: no reader would take so long a one.
    """
    text = json.dumps(header).encode()
    if len(text) > MAX_HEADER:
        raise InputError(f"a header of {len(text)} bytes is too long", "--no-tokens shortens it")
    return zlib.compress(text, 9)


def _inflate(data: bytes) -> bytes:
    """A header's JSON text, which may not be longer than `MAX_HEADER`."""
    inflater = zlib.decompressobj()
    text = inflater.decompress(data, MAX_HEADER)
    if not inflater.eof:
        raise ValueError("its text is cut or too long")
    return text


@dataclass(frozen=True)
class Reader:
    """An opened file's header; sections are read one by one, in any order."""

    path: Path
    header: dict[str, Any]
    file_bytes: int

    @classmethod
    def open(cls, path: Path) -> Reader:
        """Read and check the header alone.

        Raises:
            InputError: not such a file, of another version, cut or damaged.
        """
        try:
            size = os.path.getsize(path)
            with path.open("rb") as file:
                header = _read_header(path, file, size)
        except OSError as error:
            raise InputError(
                f"'{path}' cannot be read: {error.strerror}", "name a .cgkv file"
            ) from error
        return cls(path, header, size)

    def places(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """(index of the layer, "keys" or "values", what the header says of the section)."""
        for index, layer in enumerate(self.header["layers"]):
            for name in TENSORS:
                yield index, name, layer[name]

    def section(self, index: int, name: str) -> Section:
        """One section, its checksum verified.

        Raises:
            InputError: it is cut or damaged; the message names layer and tensor.
        """
        layer = self.header["layers"][index]
        place = layer[name]
        label = f"layer {layer['layer']}'s {name} in '{self.path.name}'"
        offset, length = place["offset"], place["length"]
        if not (offset >= PREAMBLE_BYTES and 0 <= length <= self.file_bytes - offset):
            raise InputError(f"{label} lie outside the file", "the file is damaged")
        with self.path.open("rb") as file:
            file.seek(offset)
            data = file.read(length)
        if zlib.crc32(data) != place["crc32"]:
            raise InputError(f"the checksum of {label} does not match", "the file is damaged")
        try:
            return Section.from_bytes(data)
        except InputError as error:
            raise InputError(f"{label}: {error.message}", error.hint) from None


def _read_header(path: Path, file: BinaryIO, size: int) -> dict[str, Any]:
    start = file.read(PREAMBLE_BYTES)
    if len(start) < PREAMBLE_BYTES or start[:4] != MAGIC:
        raise InputError(f"'{path}' is not a .cgkv file", "cachegen pack writes one")
    _, number, _, offset, length, crc = _PREAMBLE.unpack(start)
    if number not in READS:
        raise InputError(
            f"'{path}' has format version {number}, this version reads up to {VERSION}",
            "update cachegen",
        )
    if length > MAX_HEADER or offset + length != size:
        raise InputError(f"'{path}' is cut: its header is not where it says", "get it again")
    file.seek(offset)
    data = file.read(length)
    if zlib.crc32(data) != crc:
        raise InputError(f"the header of '{path}' is damaged", "get the file again")
    try:
        header: dict[str, Any] = json.loads(_inflate(data))
        if number == 1:
            _name_schemes(header)
        _check(header)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise InputError(
            f"the header of '{path}' lacks what it must hold: {error}", "get the file again"
        ) from error
    if header["coder"] != coder_version():
        raise InputError(
            f"'{path}' was packed with constriction {header['coder']}, this is {coder_version()}",
            f"install constriction {header['coder']}",
        )
    return header


def _check(header: dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError unless every field that is used makes sense."""
    for name, kind in (("coder", str), ("metadata", dict), ("settings", dict), ("layers", list)):
        if not isinstance(header[name], kind):
            raise ValueError(name)
    tokens = header["tokens"]
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise ValueError("tokens")
    repeats = header.setdefault("repeats", [])
    if not isinstance(repeats, list) or not all(type(token) is int for token in repeats):
        raise ValueError("repeats")
    if not header["layers"]:
        raise ValueError("layers")
    for layer in header["layers"]:
        _check_layer(layer)


def _check_layer(layer: dict[str, Any]) -> None:
    members = layer.setdefault("members", [])
    if not isinstance(members, list):
        raise ValueError("members")
    for member, heads in members:
        _natural(member, "member")
        _natural(heads, "heads of a member")
    if members and sum(heads for _, heads in members) != layer["heads"]:
        raise ValueError("members")
    for name in ("layer", "heads", "tokens", "tokens_seen", "window", "sinks"):
        _natural(layer[name], name)
    if layer["dtype"] not in ("float16", "bfloat16"):
        raise ValueError("dtype")
    if layer["cache"] not in CLASSES:
        raise ValueError("cache")
    tokens, window = layer["tokens"], layer["window"]
    slides = layer["cache"] in ("RotatingKVCache", "ChunkedKVCache")
    if slides != (window > 0) or layer["sinks"] > window:
        raise ValueError("window or sinks")
    if not slides and layer["tokens_seen"] != tokens:
        raise ValueError("tokens_seen")
    if tokens > layer["tokens_seen"]:
        raise ValueError("tokens_seen")
    if layer["cache"] == "RotatingKVCache" and tokens != min(window, layer["tokens_seen"]):
        raise ValueError("tokens of a window")
    for tensor in TENSORS:
        place = layer[tensor]
        for name in ("dim", "bits", "kept_first", "kept_last",
                     "offset", "length", "crc32"):  # fmt: skip
            _natural(place[name], name)
        if not isinstance(place["scheme"], dict):
            raise ValueError("scheme")
        if place["kept_first"] + place["kept_last"] > tokens:
            raise ValueError("kept tokens")


def _name_schemes(header: dict[str, Any]) -> None:
    """Say of every tensor what version 1 left unsaid."""
    for layer in header["layers"]:
        for tensor in TENSORS:
            place = layer[tensor]
            sizes = {"bits": place["bits"], "group_size": place["group_size"]}
            place["scheme"] = {"name": "group"} | sizes


def _natural(value: Any, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise ValueError(name)
