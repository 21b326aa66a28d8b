"""Keys and values of each cache entry, out of a live mlx-lm cache or a file, and back.

The only room that knows mlx-lm's cache classes. It reads the attributes ``keys``,
``values`` and ``offset``, which are the same in every version, never ``state`` or
``nbytes`` of a class it analyses: those hold the padding of the growing buffers too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cachegen_cli.device import mx
from cachegen_cli.errors import InputError, OutputError
from cachegen_cli.output import drafted
from cachegen_cli.results import Skipped, spans

TOKENS = "tokens"  # key of a prompt cache's metadata


@dataclass(frozen=True)
class LayerKV:
    """One cache entry's keys and values in temporal order, without padding.

    Several entries of equal length may be joined to one, head after head.

    Attributes:
        layer: index of the entry in the model's cache, the first where several are joined.
        cache: class name of the mlx-lm cache.
        keys: [n_kv_heads, tokens, head_dim] in a 16-bit dtype.
        values: [n_kv_heads, tokens, head_dim] in a 16-bit dtype; head_dim may differ.
        tokens_seen: tokens that went through; more than are kept where a window slides.
        window: tokens that a sliding window holds, 0 where it grows.
        sinks: first tokens that a window keeps.
        members: (index, heads) of each entry where several are joined.
    """

    layer: int
    cache: str
    keys: mx.array
    values: mx.array
    tokens_seen: int
    window: int = 0
    sinks: int = 0
    members: tuple[tuple[int, int], ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the entries that it holds."""
        return tuple(layer for layer, _ in self.members) or (self.layer,)

    @property
    def name(self) -> str:
        """For people: "layer 5" or "layers 0-29"."""
        return f"layer{'s' if self.members else ''} {spans(self.layers)}"


def join(layers: Sequence[LayerKV]) -> LayerKV:
    """Entries of equal length and head sizes as one, head after head."""
    return replace(
        layers[0],
        keys=mx.concatenate([kv.keys for kv in layers]),
        values=mx.concatenate([kv.values for kv in layers]),
        members=tuple((kv.layer, kv.keys.shape[0]) for kv in layers),
    )


def split(kv: LayerKV) -> list[LayerKV]:
    """The entries that are joined in one, or the one itself."""
    if not kv.members:
        return [kv]
    found, start = [], 0
    for layer, heads in kv.members:
        keys, values = (x[start : start + heads] for x in (kv.keys, kv.values))
        found.append(replace(kv, layer=layer, keys=keys, values=values, members=()))
        start += heads
    return found


def read_cache(cache: Sequence[Any], dtype: mx.Dtype) -> tuple[list[LayerKV], list[Skipped]]:
    """Split a live prompt cache into analysed entries, cast to ``dtype``, and skipped ones."""
    layers: list[LayerKV] = []
    skipped: list[Skipped] = []
    for index, entry in enumerate(cache):
        found = read_entry(index, entry, dtype)
        if isinstance(found, LayerKV):
            layers.append(found)
        else:
            skipped.append(found)
    mx.eval([(kv.keys, kv.values) for kv in layers])
    return layers, skipped


def read_entry(index: int, entry: Any, dtype: mx.Dtype | None = None) -> LayerKV | Skipped:
    """One cache entry, in ``dtype`` or its own 16-bit one; not evaluated yet."""
    name = type(entry).__name__
    if reason := _reason_to_skip(entry):
        return Skipped(index, name, getattr(entry, "nbytes", 0), reason)
    if dtype is None:
        dtype = entry.keys.dtype if entry.keys.dtype.size == 2 else mx.float16
    keys, values = (x[0].astype(dtype) for x in _READERS[name](entry))
    window, sinks = (getattr(entry, name, 0) for name in ("max_size", "keep"))
    return LayerKV(index, name, keys, values, entry.offset, window, sinks)


@dataclass
class CacheFile:
    """A prompt-cache file of mlx-lm, opened: arrays are read when they are evaluated."""

    path: Path
    entries: list[Any]
    metadata: dict[str, str]

    @classmethod
    def open(cls, path: Path) -> CacheFile:
        """Open a file that the installed mlx-lm can load.

        Raises:
            InputError: it cannot.
        """
        from mlx_lm.models.cache import load_prompt_cache

        if not path.is_file():
            raise InputError(f"there is no prompt cache '{path}'", "check the path")
        try:
            entries, metadata = load_prompt_cache(str(path), return_metadata=True)
        except Exception as error:  # mlx and mlx-lm raise whatever comes
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(
                f"'{path}' is not a prompt cache that the installed mlx-lm loads ({reason})",
                "files of mlx-lm before 0.32 have another layout",
            ) from error
        return cls(path, entries, metadata if isinstance(metadata, dict) else {})

    def take_tokens(self) -> list[int]:
        """The prompt's token ids, out of the metadata, if `unpack` has put them there."""
        found = self.metadata.get(TOKENS, "").split()
        if not found or not all(token.isdecimal() for token in found):
            return []
        del self.metadata[TOKENS]
        return [int(token) for token in found]

    def layers(self) -> Iterator[LayerKV]:
        """Entry by entry; each is let go when the next is asked for.

        Raises:
            InputError: an entry is of a class that cannot be read.
        """
        for index in range(len(self.entries)):
            found = read_entry(index, self.entries[index])
            self.entries[index] = None
            if isinstance(found, Skipped):
                raise InputError(
                    f"entry {index} of '{self.path}' ({found.cache}) cannot be packed: "
                    f"{found.reason}",
                    "only caches of KVCache and RotatingKVCache entries can",
                )
            yield found


def make_cache(layers: Iterable[LayerKV]) -> list[Any]:
    """A live mlx-lm prompt cache that goes on where the layers end."""
    from mlx_lm.models.cache import KVCache, RotatingKVCache

    cache: list[Any] = []
    for kv in layers:
        entry = RotatingKVCache(kv.window, kv.sinks) if kv.window else KVCache()
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
        _fill(forked[kv.layer], kv, forked[kv.layer].keys.dtype)
    return forked


def untouched(cache: Sequence[Any], index: int) -> LayerKV:
    """An entry that is analysed, in the dtype that the model computes in."""
    entry = cache[index]
    found = read_entry(index, entry, entry.keys.dtype)
    if isinstance(found, Skipped):
        raise InputError(f"cache entry {index} ({found.cache}) is not analysed: {found.reason}")
    return found


def _fill(entry: Any, kv: LayerKV, dtype: mx.Dtype) -> None:
    """Let a mlx-lm cache hold a layer's keys and values and go on where they end."""
    entry.keys, entry.values = kv.keys[None].astype(dtype), kv.values[None].astype(dtype)
    entry.offset = kv.tokens_seen
    if kv.window:
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


def save_cache(path: Path, cache: list[Any], metadata: dict[str, str]) -> None:
    """Write a prompt cache in the installed mlx-lm's layout, complete or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    from mlx_lm.models.cache import save_prompt_cache

    with drafted(path, ".safetensors") as draft:
        try:
            save_prompt_cache(str(draft), cache, metadata)
        except RuntimeError as error:  # how MLX says that it cannot write
            raise OutputError(f"'{path}' cannot be written: {error}", "choose another place") from (
                error
            )


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
