"""group: the seed's min/max groups of tokens by channel (`quantize`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from cachegen_cli.coding.sections import read_parameters, write_parameters
from cachegen_cli.device import fused, mx, on_cpu
from cachegen_cli.entropy import channel_major
from cachegen_cli.quantize import (
    MAX_BITS,
    MIN_BITS,
    PARAMETER_BYTES,
    CodeStream,
    as_stored,
    check_group_size,
    group_ranges,
    grouped,
    quantize_to_codes_batched,
    restore,
    restored_groups,
    ungrouped,
    wide_groups,
)
from cachegen_cli.rows import Rows
from cachegen_cli.schemes.base import (
    ByToken,
    Coded,
    Codes,
    Place,
    Plane,
    Shared,
    token_major,
)


@dataclass(frozen=True)
class Group(ByToken):
    """``bits`` wide codes between minimum and maximum of ``group_size`` tokens and a channel."""

    name: ClassVar[str] = "group"
    summary: ClassVar[str] = "min/max of groups of tokens by channel, as in VeloxQuant-MLX"
    has_bits: ClassVar[bool] = True
    widths: ClassVar[tuple[int, ...]] = tuple(range(MIN_BITS, MAX_BITS + 1))
    undoes_rope: ClassVar[bool] = False
    profile_use: ClassVar[str] = "none"
    bits: int
    group_size: int

    @classmethod
    def at(cls, place: Place, options: dict[str, Any], group_size: int) -> Group:
        """The scheme for a tensor."""
        check_group_size(group_size)
        return cls(place.bits, group_size)

    @property
    def plane_bits(self) -> tuple[int, ...]:
        """One plane."""
        return (self.bits,)

    def code(self, x: mx.array, rows: Rows, shared: Shared) -> Coded:
        """Quantize [H, T, D]; a group longer than T would only be padded."""
        size, dtype = min(self.group_size, x.shape[1]), x.dtype
        if on_cpu():  # which casts slowly: once for all that follows
            x = x.astype(mx.float32)
        if size not in shared:
            shared[size] = group_ranges(x, size)
        codes, scale, zero, wide, by_group = fused(_quantizer(self.bits, size))(x, *shared[size])
        stream = CodeStream(by_group, scale, zero, x.shape[1], self.bits)
        return Coded(
            [Plane(codes, self.bits)],
            _Parameters(scale, zero, wide),
            restore(stream, dtype),
            fused(_squared_error(dtype))(x, by_group, scale, zero),
        )

    @property
    def tokens_together(self) -> int:
        """A group."""
        return self.group_size

    def restore(
        self, planes: list[Codes], parameters: bytes, wide: bool, dtype: mx.Dtype, rows: Rows
    ) -> mx.array:
        """[H, T, D] in ``dtype``."""
        heads, dim, tokens = planes[0].shape
        group_size = max(1, min(self.group_size, tokens))
        n_groups = -(-tokens // group_size)
        scale, zero = read_parameters(parameters, wide, heads, n_groups, dim)
        codes = mx.pad(
            token_major(planes[0]), [(0, 0), (0, n_groups * group_size - tokens), (0, 0)]
        )
        stream = CodeStream(
            codes.reshape(heads, n_groups, -1, dim),
            mx.array(scale)[:, :, None],
            mx.array(zero)[:, :, None],
            tokens,
            self.bits,
        )
        return restore(stream, dtype)


@cache
def _quantizer(bits: int, size: int) -> Callable[..., tuple[mx.array, ...]]:
    """Return a function of a block and its ranges.

    It gives codes [H, D, T], scale and zero as they are stored, which groups are wide, and codes
    by group.
    """

    def quantize(x: mx.array, low: mx.array, top: mx.array) -> tuple[mx.array, ...]:
        stream = quantize_to_codes_batched(x, bits, size, (low, top))
        wide = wide_groups(stream, top)
        stream = as_stored(stream, wide)._replace(codes=stream.codes.astype(mx.uint8))
        return channel_major(stream), stream.scale, stream.zero, wide, stream.codes

    return quantize


@cache
def _squared_error(dtype: mx.Dtype) -> Callable[..., mx.array]:
    """`squared_error` of a block in a dtype, from what `_quantizer` gives, by group: what a GPU
    fuses into one operation.
    """

    def squared_error(x: mx.array, by_group: mx.array, scale: mx.array, zero: mx.array) -> mx.array:
        stream = CodeStream(by_group, scale, zero, x.shape[1], 0)
        groups = restored_groups(stream, dtype).astype(mx.float32)
        squares = mx.square(groups - grouped(x, by_group.shape[2]))
        return ungrouped(squares, x.shape[1]).sum(axis=1)

    return squared_error


@dataclass(frozen=True)
class _Parameters:
    """Scales and zeros in float16, those of wide groups in float32 behind a mask."""

    scale: mx.array
    zero: mx.array
    wide: mx.array

    @classmethod
    def joined(cls, parts: list[_Parameters]) -> _Parameters:
        """The groups of all blocks."""
        arrays = zip(*((part.scale, part.zero, part.wide) for part in parts), strict=True)
        return cls(*(mx.concatenate(list(array), axis=1) for array in arrays))

    @property
    def arrays(self) -> list[mx.array]:
        """What to evaluate."""
        return [self.wide, self.scale, self.zero]

    @property
    def stored_bytes(self) -> int:
        """4 bytes a group and channel, 8 in wide groups, and the mask if there are any."""
        groups = np.asarray(self.wide).ravel()
        more = int(groups.sum()) * self.scale.shape[-1] * PARAMETER_BYTES
        mask = -(-groups.size // 8) if more else 0
        return self.scale.size * PARAMETER_BYTES + more + mask

    def encode(self) -> tuple[bytes, bool]:
        """Mask, narrow groups, wide groups."""
        scale, zero = (np.asarray(x)[:, :, 0] for x in (self.scale, self.zero))
        return write_parameters(scale, zero, np.asarray(self.wide)[:, :, 0, 0])
