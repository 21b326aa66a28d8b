"""A cache entry's keys and values under settings: the scheme of each, and what it makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cachegen_cli.coding.container import TENSORS
from cachegen_cli.device import mx
from cachegen_cli.kvcache import LayerKV, split
from cachegen_cli.model import dtype_name
from cachegen_cli.results.settings import Settings
from cachegen_cli.rows import Context, rows_of
from cachegen_cli.schedules import widths
from cachegen_cli.schemes import SCHEMES, Place, Scheme, scheme_at
from cachegen_cli.schemes.affine import StoredAffine
from cachegen_cli.tensors import Tensor
from cachegen_cli.units import profile_of
from cachegen_cli.values import Values


def restored_layers(kv: LayerKV, keys: mx.array, values: mx.array) -> list[LayerKV]:
    """A unit's layers with what a decoder would give back."""
    mx.eval(keys, values)
    return split(replace(kv, keys=keys, values=values))


def tensors(
    kv: LayerKV,
    name: str,
    place: int,
    n_layers: int,
    grid: Sequence[Settings],
    context: Context,
    restored: bool = False,
    codes: bool = True,
) -> Iterator[Tensor]:
    """Keys or values of a unit under each setting of one scheme, one after the other.

    Args:
        name: "keys" or "values".
        place: where the unit begins among ``n_layers`` entries.
        restored, codes: whether what a decoder gives back, and codes to encode, are wanted.

    Raises:
        InputError, UsageError: the scheme or the plan does not fit the layer, or values are not
            finite.
    """
    x = kv.keys if name == "keys" else kv.values
    known: dict[tuple[int, int], Values] = {}
    for settings in grid:
        undoes = SCHEMES[settings.scheme].undoes_rope
        scheme, own = _scheme(kv, name, place, n_layers, settings, context)
        kept = own.keep_first, own.keep_last
        if kept not in known:
            rows = rows_of(kv, context.tokens if undoes else ())
            known[kept] = Values(f"{kv.name}'s {name}", x, rows, *kept, kv.from_float32)
        yield Tensor(known[kept], scheme, own, restored, codes)


def _scheme(
    kv: LayerKV, name: str, place: int, n_layers: int, settings: Settings, context: Context
) -> tuple[Scheme, Settings]:
    """What codes a tensor, and under which settings: what is stored in codes stays as it is."""
    if kv.stored is not None:
        codes, *parameters = kv.stored.keys if name == "keys" else kv.stored.values
        # float32 where a model computes in that; a file holds 16 bits
        scales, biases = (x.astype(kv.keys.dtype) for x in parameters)
        packed = codes, scales, biases
        stored = StoredAffine(kv.stored.bits, kv.stored.group_size, packed)
        return stored, replace(settings, keep_first=0, keep_last=0)
    rotary = context.rotary(kv.layer) if SCHEMES[settings.scheme].undoes_rope else ""
    bits = widths(settings, n_layers)[TENSORS.index(name)][place]
    dtype = dtype_name(kv.keys.dtype)
    profile = profile_of(settings)
    at = Place(name, place, n_layers, bits, dtype, rotary, profile, kv.layers)
    return scheme_at(settings, at), settings


def quantized(
    kv: LayerKV,
    place: int,
    n_layers: int,
    settings: Settings,
    context: Context,
    restored: bool = False,
) -> list[Tensor]:
    """Keys and values of a unit under one setting; arguments and errors as in `tensors`."""
    return [
        tensor.settle()
        for name in TENSORS
        for tensor in tensors(kv, name, place, n_layers, [settings], context, restored)
    ]
