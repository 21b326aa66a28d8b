"""A tensor's section of a file: its stream, its parameters, its kept tokens."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from cachegen_cli.errors import InputError

# stream bytes, parameter bytes, kept bytes, 1 where some groups' parameters are float32
_HEADER = struct.Struct("<IIII")
SECTION_BYTES = _HEADER.size

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Section:
    """Bytes of the three parts.

    Attributes:
        stream: a stream for each plane of codes, one after another.
        wide: some parameters are wider than usual, and begin with a mask that says which.
    """

    stream: bytes
    parameters: bytes
    kept: bytes
    wide: bool

    def to_bytes(self) -> bytes:
        """The section as it stands in a file."""
        parts = (self.stream, self.parameters, self.kept)
        return _HEADER.pack(*map(len, parts), self.wide) + b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Section:
        """The inverse of `to_bytes`.

        Raises:
            InputError: the lengths do not add up.
        """
        if len(data) < SECTION_BYTES:
            raise InputError("a section is cut", "the file is damaged")
        *lengths, wide = _HEADER.unpack_from(data)
        if len(data) != SECTION_BYTES + sum(lengths) or wide > 1:
            raise InputError("a section's lengths do not add up", "the file is damaged")
        a, b, c, d = accumulate([SECTION_BYTES, *lengths])
        return cls(data[a:b], data[b:c], data[c:d], bool(wide))

    def read_kept(self, heads: int, tokens: int, dim: int) -> npt.NDArray[np.uint16]:
        """Kept values' bit patterns [H, kept tokens, D].

        Raises:
            InputError: they are not as many as that.
        """
        if len(self.kept) != heads * tokens * dim * 2:
            raise InputError("its kept tokens are cut", "the file is damaged")
        return np.frombuffer(self.kept, "<u2").reshape(heads, tokens, dim)


def write_parameters(
    scale: Floats, zero: Floats, wide: npt.NDArray[np.bool_]
) -> tuple[bytes, bool]:
    """(scales and zeros of groups as bytes, whether a mask and float32 groups are in them).

    Args:
        scale, zero: [H, n_groups, D].
        wide: [H, n_groups], groups whose parameters stay float32.
    """
    mask = wide.ravel()
    rows = np.stack([scale, zero], axis=2).reshape(mask.size, 2 * scale.shape[2])
    narrow = rows[~mask].astype("<f2").tobytes()
    if not mask.any():
        return narrow, False
    bits = np.packbits(mask, bitorder="little").tobytes()
    return bits + narrow + rows[mask].astype("<f4").tobytes(), True


def read_parameters(
    data: bytes, with_mask: bool, heads: int, n_groups: int, dim: int
) -> tuple[Floats, Floats]:
    """(scale, zero), each [H, n_groups, D] float32, of `write_parameters`' bytes.

    Raises:
        InputError: they are not as many as that.
    """
    groups = heads * n_groups
    mask = np.zeros(groups, bool)
    if with_mask:
        head = -(-groups // 8)
        packed = np.frombuffer(data[:head], np.uint8)
        if len(packed) == head:
            mask = np.unpackbits(packed, count=groups, bitorder="little").astype(bool)
        data = data[head:]
    narrow_bytes = int((~mask).sum()) * 2 * dim * 2
    if len(data) != narrow_bytes + int(mask.sum()) * 2 * dim * 4:
        raise InputError("its parameters are cut", "the file is damaged")
    rows = np.empty((groups, 2 * dim), np.float32)
    rows[~mask] = np.frombuffer(data[:narrow_bytes], "<f2").reshape(-1, 2 * dim)
    rows[mask] = np.frombuffer(data[narrow_bytes:], "<f4").reshape(-1, 2 * dim)
    pair = rows.reshape(heads, n_groups, 2, dim)
    return pair[:, :, 0], pair[:, :, 1]
