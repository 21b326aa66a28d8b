"""Live mlx-lm caches: made from layers, copied, and filled with other layers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from cachegen_cli.device import mx
from cachegen_cli.errors import InputError
from cachegen_cli.kvcache.entries import read_entry
from cachegen_cli.kvcache.layers import LayerKV
from cachegen_cli.results.run import Skipped
from cachegen_cli.results.spans import Entry


def make_cache(layers: Iterable[LayerKV]) -> list[Any]:
    """A live mlx-lm prompt cache that goes on where the layers end.

    Raises:
        InputError: a part of an entry, which no cache is made of.
    """
    from mlx_lm.models.cache import (
        ChunkedKVCache,
        ConcatenateKVCache,
        KVCache,
        RotatingKVCache,
    )

    cache: list[Any] = []
    for kv in layers:
        if isinstance(kv.layer, str):
            raise InputError(f"cache entry {kv.layer} ({kv.cache}) is part of another")
        entry: Any
        if kv.cache == "RotatingKVCache":
            entry = RotatingKVCache(kv.window, kv.sinks)
        elif kv.cache == "ChunkedKVCache":
            entry = ChunkedKVCache(kv.window)
            entry.start_position = kv.tokens_seen - kv.keys.shape[1]
        elif kv.cache == "ConcatenateKVCache":
            entry = ConcatenateKVCache()
        elif kv.cache in ("KVCache", "QuantizedKVCache"):
            entry = KVCache()
        else:
            raise InputError(f"no cache of class {kv.cache} can be made", "take another scheme")
        _fill(entry, kv, kv.keys.dtype)
        cache.append(entry)
    return cache


def fork(cache: Sequence[Any], layers: Iterable[LayerKV] = ()) -> list[Any]:
    """A copy of a live cache that the model can read on from, while the original stays as it is.

    Args:
        cache: mlx-lm's prompt cache, of any classes.
        layers: what entries of the copy hold instead, cast to the dtype that they had.
    """
    forked: list[Any] = [_copied(entry) for entry in cache]
    for kv in layers:
        entry = located(forked, kv.layer)
        if kv.stored is None:  # codes come back as they are
            _fill(entry, kv, entry.keys.dtype)
    return forked


def untouched(cache: Sequence[Any], place: Entry) -> LayerKV:
    """An entry that is analysed, in the dtype that the model computes in."""
    entry = located(cache, place)
    dtype = entry.keys.dtype if isinstance(entry.keys, mx.array) else None
    [found] = read_entry(place, entry, dtype)
    if isinstance(found, Skipped):
        raise InputError(f"cache entry {place} ({found.cache}) is not analysed: {found.reason}")
    return found


def located(cache: Sequence[Any], place: Entry) -> Any:
    """The entry at a place, or the part of one."""
    index, *parts = str(place).split("/")
    entry = cache[int(index)]
    for part in parts:
        entry = entry.caches[int(part)]
    return entry


def _fill(entry: Any, kv: LayerKV, dtype: mx.Dtype) -> None:
    """Let a mlx-lm cache hold a layer's keys and values and go on where they end."""
    entry.keys = kv.keys[None].astype(dtype)
    if kv.values.shape[2]:
        entry.values = kv.values[None].astype(dtype)
    entry.offset = kv.tokens_seen
    if hasattr(entry, "max_size"):
        entry._idx = kv.keys.shape[1]


def _copied(value: Any) -> Any:
    """A copy whose arrays are handles of their own: mlx-lm's caches assign to slices of theirs."""
    if isinstance(value, mx.array):
        return value[...]
    if isinstance(value, list | tuple):
        return type(value)(_copied(part) for part in value)
    if hasattr(value, "__dict__") and not callable(value):  # a cache, or one within another
        twin = copy.copy(value)
        vars(twin).update({name: _copied(part) for name, part in vars(value).items()})
        return twin
    return value
