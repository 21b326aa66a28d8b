"""exact: the 16-bit values as they are, their bits coded in planes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cachegen_cli.device import mx
from cachegen_cli.errors import InputError
from cachegen_cli.rows import Rows
from cachegen_cli.schemes.base import (
    Arrays,
    ByToken,
    Coded,
    Codes,
    Place,
    Plane,
    Shared,
    channel_major,
)

_EXPONENT_BITS = {"float16": 5, "bfloat16": 8}


@dataclass(frozen=True)
class Exact(ByToken):
    """Planes of exponents, and of signs with mantissas from the top down, of ``dtype``."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "the 16-bit values without any loss"
    has_bits: ClassVar[bool] = False
    undoes_rope: ClassVar[bool] = False
    profile_use: ClassVar[str] = "none"
    dtype: str

    @classmethod
    def at(cls, place: Place, options: dict[str, Any], group_size: int) -> Exact:
        """The scheme for a tensor."""
        return cls(place.dtype)

    @property
    def plane_bits(self) -> tuple[int, ...]:
        """Exponent; sign and top of the mantissa; in float16 the three bits that are left."""
        exponent = _EXPONENT_BITS[self.dtype]
        return (exponent, 8, 8 - exponent) if exponent < 8 else (exponent, 8)

    def code(self, x: mx.array, rows: Rows, shared: Shared) -> Coded:
        """Take [H, T, D] apart."""
        exponent = _EXPONENT_BITS[self.dtype]
        pattern = x.view(mx.uint16)
        mantissa_bits = 15 - exponent
        mantissa = pattern & ((1 << mantissa_bits) - 1)
        low = mantissa_bits - 7
        parts = [
            (pattern >> mantissa_bits) & ((1 << exponent) - 1),
            (pattern >> 15 << 7) | (mantissa >> low),
            mantissa & ((1 << low) - 1),
        ]
        planes = [
            Plane(channel_major(part), bits)
            for part, bits in zip(parts, self.plane_bits, strict=False)
        ]
        return Coded(planes, Arrays([]), x)

    def restore(
        self, planes: list[Codes], parameters: bytes, wide: bool, dtype: mx.Dtype, rows: Rows
    ) -> mx.array:
        """[H, T, D] in ``dtype``."""
        if parameters:
            raise InputError("it has parameters, and its scheme has none", "the file is damaged")
        exponent = _EXPONENT_BITS[self.dtype]
        mantissa_bits = 15 - exponent
        low = mantissa_bits - 7
        parts = [plane.astype(np.uint16) for plane in planes]
        pattern = parts[0] << mantissa_bits | parts[1] >> 7 << 15 | (parts[1] & 127) << low
        if low:
            pattern |= parts[2]
        return mx.array(np.ascontiguousarray(pattern.swapaxes(1, 2))).view(dtype)
