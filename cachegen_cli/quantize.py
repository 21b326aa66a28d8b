"""The seed's group quantizer: asymmetric min/max over groups of tokens.

For each group of ``group_size`` consecutive tokens and each channel, in float32::

    step = max((max - min) / (2^bits - 1), 1e-8)
    code = clip(round_half_even((x - min) / step), 0, 2^bits - 1)
    x'   = code * step + min

The last group is padded by repeating the last row; the padding is in no size but
that of its group's parameters. Signatures are those of the CacheGen module of
VeloxQuant-MLX; the scheme is that of KIVI (arXiv:2402.02750) for keys. Nothing is
evaluated here: NaN and infinity are found where the codes are first read
(`entropy`).
"""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

from cachegen_cli.device import mx, on_cpu
from cachegen_cli.dtypes import clipped
from cachegen_cli.errors import UsageError
from cachegen_cli.wording import counted

MIN_BITS, MAX_BITS = 1, 8
PARAMETER_BYTES = 4  # a group's scale and zero for one channel, two fp16 numbers
MIN_STEP = 1e-8


class CodeStream(NamedTuple):
    """Codes and what is needed to dequantize them.

    A batched stream has a leading axis G (batch x heads) on each array.

    Attributes:
        codes: [n_groups, group_size, D] float32 integers in [0, 2^bits - 1].
        scale: [n_groups, 1, D] float32 step of a group and channel.
        zero: [n_groups, 1, D] float32 minimum of a group and channel.
        n_rows: tokens before padding.
        bits: code width.
    """

    codes: mx.array
    scale: mx.array
    zero: mx.array
    n_rows: int
    bits: int


def quantize_to_codes(x: mx.array, bits: int, group_size: int = 32) -> CodeStream:
    """Quantize one head's keys or values, [N, D] float16, bfloat16 or float32.

    Raises:
        UsageError: ``bits`` outside 1-8, ``group_size`` < 1, empty or not 2-D input.
    """
    _check_rank(x, 2, "[N, D]")
    return unbatch(quantize_to_codes_batched(x[None], bits, group_size))


def quantize_to_codes_batched(
    x: mx.array,
    bits: int,
    group_size: int = 32,
    ranges: tuple[mx.array, mx.array] | None = None,
) -> CodeStream:
    """Quantize G heads at once, [G, N, D]; groups run along axis 1.

    Args:
        ranges: what `group_ranges` finds, to save finding it again for each width.

    Raises:
        UsageError: ``bits`` outside 1-8, ``group_size`` < 1, empty or not 3-D input.
    """
    check_bits(bits)
    check_group_size(group_size)
    _check_rank(x, 3, "[G, N, D]")
    if x.size == 0:
        raise UsageError(f"nothing to quantize: the array has shape {tuple(x.shape)}")
    zero, top = ranges or group_ranges(x, group_size)
    levels = 2**bits - 1
    scale = mx.maximum((top - zero) / levels, MIN_STEP)
    codes = mx.clip(mx.round((grouped(x, group_size).astype(mx.float32) - zero) / scale), 0, levels)
    return CodeStream(codes, scale, zero, x.shape[1], bits)


def group_ranges(x: mx.array, group_size: int) -> tuple[mx.array, mx.array]:
    """Minimum and maximum [G, n_groups, 1, D] float32 of the groups of [G, N, D]."""
    # a CPU compares 16-bit numbers slowly; a GPU need not widen them all
    groups = grouped(x.astype(mx.float32) if on_cpu() else x, group_size)
    low, top = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
    return low.astype(mx.float32), top.astype(mx.float32)


def grouped(x: mx.array, group_size: int) -> mx.array:
    """[G, N, D] as [G, n_groups, group_size, D], padded with its last row."""
    heads, n_rows, dim = x.shape
    n_groups = -(-n_rows // group_size)
    if padding := n_groups * group_size - n_rows:
        last = mx.broadcast_to(x[:, -1:], (heads, padding, dim))
        x = mx.concatenate([x, last], axis=1)
    return x.reshape(heads, n_groups, group_size, dim)


def dequant_codes(stream: CodeStream) -> mx.array:
    """Reconstruct [n_rows, D] float16 from a stream."""
    return dequant_codes_batched(batch(stream))[0]


def dequant_codes_batched(stream: CodeStream) -> mx.array:
    """Reconstruct [G, n_rows, D] float16 from a batched stream."""
    _check_rank(stream.codes, 4, "[G, n_groups, group_size, D]")
    return restore(stream, mx.float16)


def cachegen_quant_dequant(x: mx.array, bits: int, group_size: int = 32) -> mx.array:
    """What the model would see of ``x`` [N, D] after a round trip: [N, D] float16."""
    return dequant_codes(quantize_to_codes(x, bits, group_size))


def wide_groups(stream: CodeStream, top: mx.array) -> mx.array:
    """Groups [G, n_groups, 1, 1] of a batched stream that float16 parameters would spoil.

    That is where a parameter is beyond float16's range, or so small that rounding it could
    move a value by more than half a step. ``top`` [G, n_groups, 1, D] are the groups' maxima.
    """
    scale_error, zero_error = (
        mx.abs(x - x.astype(mx.float16).astype(mx.float32)) for x in (stream.scale, stream.zero)
    )
    # the largest code: below 2^bits - 1 where the step is MIN_STEP, in a constant channel 0
    largest = mx.round((top - stream.zero) / stream.scale)
    moved = zero_error + mx.where(largest > 0, largest * scale_error, 0.0)
    return (moved > stream.scale / 2).any(axis=-1, keepdims=True)


def as_stored(stream: CodeStream, wide: mx.array) -> CodeStream:
    """A batched stream with the parameters that a file holds: float16, float32 in wide groups."""
    scale, zero = (
        mx.where(wide, x, x.astype(mx.float16).astype(mx.float32))
        for x in (stream.scale, stream.zero)
    )
    return stream._replace(scale=scale, zero=zero)


def restore(stream: CodeStream, dtype: mx.Dtype) -> mx.array:
    """[G, n_rows, D] in ``dtype`` from a batched stream."""
    return ungrouped(restored_groups(stream, dtype), stream.n_rows)


def restored_groups(stream: CodeStream, dtype: mx.Dtype) -> mx.array:
    """As `restore`, by group and with padding: [G, n_groups, group_size, D]."""
    return clipped(stream.codes * stream.scale + stream.zero, dtype)


def ungrouped(groups: mx.array, n_rows: int) -> mx.array:
    """The first rows [G, n_rows, D] of [G, n_groups, group_size, D]."""
    heads, n_groups, group_size, dim = groups.shape
    return groups.reshape(heads, n_groups * group_size, dim)[:, :n_rows]


def parameter_bytes(stream: CodeStream) -> int:
    """Bytes of one head's scales and zeros, two fp16 numbers a group and channel."""
    n_groups, _, dim = stream.scale.shape[-3:]
    return n_groups * dim * PARAMETER_BYTES


def batch(stream: CodeStream) -> CodeStream:
    """A stream of one head as a batched stream with G = 1."""
    codes, scale, zero, n_rows, bits = stream
    return CodeStream(codes[None], scale[None], zero[None], n_rows, bits)


def unbatch(stream: CodeStream) -> CodeStream:
    """The first head of a batched stream."""
    codes, scale, zero, n_rows, bits = stream
    return CodeStream(codes[0], scale[0], zero[0], n_rows, bits)


def layer_group_bits(n_layers: int, base_bits: int, n_groups: int = 3) -> list[int]:
    """Bits by layer: ``base_bits`` for the first of ``n_groups`` equal groups of layers, one
    fewer in each deeper group, never below 2 (CacheGen sections 5.1.2 and 5.2).

    Raises:
        UsageError: negative ``n_layers``, ``base_bits`` outside 1-8, ``n_groups`` < 1.
    """
    check_bits(base_bits)
    if n_layers < 0 or n_groups < 1:
        raise UsageError(
            f"no schedule for {counted(n_layers, 'layer')} in {counted(n_groups, 'group')}"
        )
    n_groups = min(n_groups, n_layers)
    bounds = [round(n_layers * g / n_groups) for g in range(1, n_groups + 1)]
    bits: list[int] = []
    for group, end in enumerate(bounds):
        bits += [max(2, base_bits - group)] * (end - len(bits))
    return bits


def check_bits(bits: int) -> None:
    """Raise UsageError unless ``bits`` is a whole number from 1 to 8."""
    if not _is_integer(bits) or not MIN_BITS <= bits <= MAX_BITS:
        raise UsageError(
            f"{bits} is not a code width", f"bits are whole numbers from {MIN_BITS} to {MAX_BITS}"
        )


def check_group_size(group_size: int) -> None:
    """Raise UsageError unless ``group_size`` is at least 1."""
    if not _is_integer(group_size) or group_size < 1:
        raise UsageError(
            f"{group_size} is not a group size", "it counts tokens: 1 or more, usually 32 or 64"
        )


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_rank(x: mx.array, rank: int, axes: str) -> None:
    if x.ndim != rank:
        raise UsageError(f"expected an array {axes}, got shape {tuple(x.shape)}")
