"""A cache entry's keys and values as they are analysed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cachegen_cli.device import mx
from cachegen_cli.errors import InputError
from cachegen_cli.results.spans import Entry, spans

Packed = tuple[mx.array, mx.array, mx.array]


@dataclass(frozen=True)
class Stored:
    """Codes that a cache holds already, as mlx's quantizer packs them.

    Attributes:
        bits, group_size: groups lie along head_dim.
        keys, values: (codes uint32, scales, biases), each [n_kv_heads, tokens, ...].
    """

    bits: int
    group_size: int
    keys: Packed
    values: Packed

    @property
    def text(self) -> str:
        """For people."""
        return f"mlx {self.bits} bits, groups of {self.group_size}"


@dataclass(frozen=True)
class LayerKV:
    """One cache entry's keys and values in temporal order, without padding.

    Several entries of equal length may be joined to one, head after head.

    Attributes:
        layer: place of the entry in the model's cache, the first where several are joined.
        cache: class name of the mlx-lm cache.
        keys: [n_kv_heads, tokens, head_dim] in a 16-bit dtype.
        values: [n_kv_heads, tokens, head_dim] in a 16-bit dtype; head_dim may differ, and is 0
            where the entry has no values.
        tokens_seen: tokens that went through; more than are kept where a window slides.
        window: tokens that a sliding window or a chunk holds, 0 where it grows.
        sinks: first tokens that a window keeps.
        members: (place, heads) of each entry where several are joined.
        role: "kv"; "latent" where multi-head latent attention keeps a latent in the place of keys
            and the rotated key in that of values; "index" for the keys of sparse attention.
        stored: the codes, where the cache is quantized already; keys and values are then what
            they stand for.
        unknown: why it cannot be made again: what a file leaves out of its rows or positions.
        allocated: tokens that the cache has room for.
        from_float32: whether keys and values are rounded from float32, which holds larger numbers.
    """

    layer: Entry
    cache: str
    keys: mx.array
    values: mx.array
    tokens_seen: int
    window: int = 0
    sinks: int = 0
    members: tuple[tuple[Entry, int], ...] = ()
    role: str = "kv"
    stored: Stored | None = None
    unknown: str = ""
    allocated: int = field(default=0, compare=False)
    from_float32: bool = field(default=False, compare=False)

    @property
    def layers(self) -> tuple[Entry, ...]:
        """Places of the entries that it holds."""
        return tuple(layer for layer, _ in self.members) or (self.layer,)

    @property
    def name(self) -> str:
        """For people: "layer 5" or "layers 0-29"."""
        return f"layer{'s' if self.members else ''} {spans(self.layers)}"

    def check_known(self, done: str) -> None:
        """Raise InputError where a cache like it cannot be made, which is what is to be done."""
        if self.unknown:
            raise InputError(
                f"cache entry {self.layer} ({self.cache}) cannot be {done}: {self.unknown}",
                "make the file again from its prompt, with 'cachegen capture'",
            )


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
