"""mlx: what ``mlx_lm.generate --kv-bits`` stores, affine groups along head_dim."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from cachegen_cli.device import mx
from cachegen_cli.dtypes import clipped
from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.results.settings import GROUPS
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
    sixteen_bit,
    token_major,
)

WIDTHS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
DEFAULT_GROUP = GROUPS["mlx"]


@dataclass(frozen=True)
class Affine(ByToken):
    """MLX's own quantizer: a scale and a bias for each token and ``group_size`` channels.

    About half of MLX's groups have a negative scale; their codes are mirrored, so that a
    larger code is a larger value everywhere. The sign of the scale says which.
    """

    name: ClassVar[str] = "mlx"
    summary: ClassVar[str] = "what mlx_lm --kv-bits stores: affine groups along head_dim"
    has_bits: ClassVar[bool] = True
    widths: ClassVar[tuple[int, ...]] = WIDTHS
    undoes_rope: ClassVar[bool] = False
    profile_use: ClassVar[str] = "none"
    bits: int
    group_size: int

    @classmethod
    def at(cls, place: Place, options: dict[str, Any], group_size: int) -> Affine:
        """The scheme for a tensor; groups are of channels."""
        if place.bits not in WIDTHS:
            raise UsageError(
                f"MLX has no {place.bits}-bit quantizer", f"choose from {_listed(WIDTHS)}"
            )
        if group_size not in GROUP_SIZES:
            raise UsageError(
                f"MLX has no groups of {group_size} channels", f"choose from {_listed(GROUP_SIZES)}"
            )
        return cls(place.bits, group_size)

    @property
    def plane_bits(self) -> tuple[int, ...]:
        """One plane."""
        return (self.bits,)

    def code(self, x: mx.array, rows: Rows, shared: Shared) -> Coded:
        """Quantize [H, T, D]."""
        dim = x.shape[2]
        if dim % self.group_size:
            fitting = [size for size in GROUP_SIZES if dim % size == 0]
            raise UsageError(
                f"groups of {self.group_size} channels do not divide head_dim {dim}",
                f"--scheme mlx:group_size={fitting[-1]}"
                if fitting
                else "MLX cannot quantize this cache; take another scheme",
            )
        return self.coded(
            *mx.quantize(x, group_size=self.group_size, bits=self.bits), dtype=x.dtype
        )

    def coded(self, packed: mx.array, scales: mx.array, biases: mx.array, dtype: mx.Dtype) -> Coded:
        """What `mx.quantize` gave for [H, T, D]: codes [H, T, D * bits / 32], scales, biases."""
        # with scale 1 and bias 0 MLX's own unpacking gives the codes, at any width
        codes = mx.dequantize(
            packed,
            mx.ones_like(scales, dtype=mx.float32),
            mx.zeros_like(biases, dtype=mx.float32),
            group_size=self.group_size,
            bits=self.bits,
        )
        mirrored = self._mirrored(codes, scales)
        return Coded(
            [Plane(channel_major(mirrored), self.bits)],
            Arrays([scales, biases], axis=1),
            self._values(mirrored, scales, biases, dtype),
        )

    def restore(
        self, planes: list[Codes], parameters: bytes, wide: bool, dtype: mx.Dtype, rows: Rows
    ) -> mx.array:
        """[H, T, D] in ``dtype``: scale * code + bias in float32, rounded once."""
        heads, dim, tokens = planes[0].shape
        shape = (heads, tokens, dim // self.group_size)
        if dim % self.group_size or len(parameters) != 4 * heads * tokens * shape[2]:
            raise InputError("its parameters are cut", "the file is damaged")
        half = len(parameters) // 2
        scales, biases = (
            sixteen_bit(part, shape, dtype) for part in (parameters[:half], parameters[half:])
        )
        return self._values(token_major(planes[0]), scales, biases, dtype)

    def _mirrored(self, codes: mx.array, scales: mx.array) -> mx.array:
        """Codes counted from the other end where the scale is negative; its own inverse."""
        negative = mx.repeat(scales < 0, self.group_size, axis=-1)
        return mx.where(negative, float(2**self.bits - 1) - codes, codes)

    def _values(
        self, mirrored: mx.array, scales: mx.array, biases: mx.array, dtype: mx.Dtype
    ) -> mx.array:
        codes = self._mirrored(mirrored, scales)
        scale, bias = (
            mx.repeat(x.astype(mx.float32), self.group_size, axis=-1) for x in (scales, biases)
        )
        return clipped(codes * scale + bias, dtype)


@dataclass(frozen=True)
class StoredAffine(Affine):
    """Codes that a cache holds already: they are taken as they are, whatever is asked for."""

    packed: tuple[mx.array, mx.array, mx.array] | None = field(default=None, compare=False)

    def code(self, x: mx.array, rows: Rows, shared: Shared) -> Coded:
        """The stored codes of [H, T, D], which is what they stand for."""
        if self.packed is None:
            return super().code(x, rows, shared)
        return self.coded(*self.packed, dtype=x.dtype)


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
