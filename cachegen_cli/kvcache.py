"""Keys and values of each cache entry, out of a live mlx-lm cache.

The only room that knows mlx-lm's cache classes. It reads the attributes ``keys``,
``values`` and ``offset``, which are the same in every version, never ``state`` or
``nbytes`` of a class it analyses: those hold the padding of the growing buffers too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cachegen_cli.device import mx
from cachegen_cli.results import Skipped


@dataclass(frozen=True)
class LayerKV:
    """One cache entry's keys and values in temporal order, without padding.

    Attributes:
        layer: index of the entry in the model's cache.
        cache: class name of the mlx-lm cache.
        keys: [n_kv_heads, tokens, head_dim] in a 16-bit dtype.
        values: [n_kv_heads, tokens, head_dim] in a 16-bit dtype; head_dim may differ.
        tokens_seen: tokens that went through; more than are kept where a window slides.
    """

    layer: int
    cache: str
    keys: mx.array
    values: mx.array
    tokens_seen: int


def read_cache(cache: Sequence[Any], dtype: mx.Dtype) -> tuple[list[LayerKV], list[Skipped]]:
    """Split a live prompt cache into analysed entries, cast to ``dtype``, and skipped ones."""
    layers: list[LayerKV] = []
    skipped: list[Skipped] = []
    for index, entry in enumerate(cache):
        name = type(entry).__name__
        if reason := _reason_to_skip(entry):
            skipped.append(Skipped(index, name, getattr(entry, "nbytes", 0), reason))
            continue
        keys, values = (x[0].astype(dtype) for x in _READERS[name](entry))
        layers.append(LayerKV(index, name, keys, values, entry.offset))
    mx.eval([(kv.keys, kv.values) for kv in layers])
    return layers, skipped


def _reason_to_skip(entry: Any) -> str:
    if type(entry).__name__ not in _READERS:
        return "this cache class is not analysed"
    if entry.keys is None or entry.keys.shape[2] == 0:
        return "the entry is empty"
    return ""


def _read_growing(entry: Any) -> tuple[mx.array, mx.array]:
    return entry.keys[..., : entry.offset, :], entry.values[..., : entry.offset, :]


def _read_rotating(entry: Any) -> tuple[mx.array, mx.array]:
    """The window in temporal order; a multi-token update leaves more rows than it holds."""
    keys, values = entry._temporal_order(entry.keys), entry._temporal_order(entry.values)
    if (excess := keys.shape[2] - entry.max_size) > 0:
        keys, values = (
            mx.concatenate([x[..., : entry.keep, :], x[..., entry.keep + excess :, :]], axis=2)
            for x in (keys, values)
        )
    return keys, values


_READERS = {"KVCache": _read_growing, "RotatingKVCache": _read_rotating}
