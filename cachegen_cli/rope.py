"""Rotary position embeddings: taken off the keys of a cache, and put on again.

mlx-lm caches keys after the rotation. Names of modules do not prove what a model does: it is
run on a few tokens, and a rotation is found where its result is what the cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachegen_cli.device import mx
from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.kvcache import LayerKV, read_cache
from cachegen_cli.model import one_line
from cachegen_cli.results.spans import Entry

_TOKEN, _PREFILL = 11, 24  # what a model is run on: one token again and again, and once more
_NAMES = ("rope", "rotary_emb")  # of what rotates in an attention module of mlx-lm
_TOLERANCE, _ROUNDING = 1e-5, 5e-2  # of the largest magnitude: in float32, of 16 bits in layers
_LARGEST = 1e30  # of a parameter, that float32 may hold its products


@dataclass(frozen=True)
class Rotary:
    """How keys were rotated; without dims not at all.

    Attributes:
        dims: leading channels that are rotated, in pairs.
        traditional: whether a pair is two neighbours, instead of dims / 2 apart.
        base: of the geometric wavelengths, None where there is a table.
        freqs: [dims / 2] wavelengths over 2 pi, float32; may be infinite.
        scale: of the positions.
        factor: of the rotated channels.
    """

    dims: int = 0
    traditional: bool = False
    base: float | None = None
    freqs: tuple[float, ...] | None = None
    scale: float = 1.0
    factor: float = 1.0

    def undo(self, keys: mx.array, positions: Sequence[int] | NDArray[Any]) -> mx.array:
        """The float32 keys before the rotation.

        Args:
            keys: [n_kv_heads, tokens, head_dim] of any dtype.
            positions: [tokens] in the text; see `positions_of`.

        Raises:
            UsageError: shapes that do not fit.
        """
        turned = self._turned(keys.astype(mx.float32), positions, -self.scale)
        return self._scaled(turned, 1 / self.factor)

    def redo(self, keys: mx.array, positions: Sequence[int] | NDArray[Any]) -> mx.array:
        """The float32 keys after the rotation; arguments and errors as in `undo`."""
        return self._turned(self._scaled(keys, self.factor), positions, self.scale)

    def _scaled(self, keys: mx.array, factor: float) -> mx.array:
        keys = keys.astype(mx.float32)
        return keys if factor == 1.0 else keys.at[..., : self.dims].multiply(factor)

    def _turned(self, keys: mx.array, positions: Any, scale: float) -> mx.array:
        places = np.asarray(positions, dtype=np.int32)
        if keys.ndim != 3 or places.shape != keys.shape[1:2] or self.dims > keys.shape[2]:
            raise UsageError(f"keys {keys.shape} at positions {places.shape} do not fit {self}")
        if not self.dims or not keys.size:
            return keys
        # MLX's own kernel, whose float32 angles are off by 0.01 at position 1e6 in the same
        # way as the model's; each row is an example of a batch, for only those have offsets
        turned = mx.fast.rope(
            keys.transpose(1, 0, 2)[:, :, None],
            self.dims,
            traditional=self.traditional,
            base=self.base,
            scale=scale,
            offset=mx.array(places),
            freqs=mx.array(self.freqs, dtype=mx.float32) if self.freqs else None,
        )
        return turned[:, :, 0].transpose(1, 0, 2)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads: what differs from no rotation."""
        found = {name: value for name, value in vars(self).items() if value != getattr(_NONE, name)}
        if self.freqs:
            found["freqs"] = ["inf" if value == inf else value for value in self.freqs]
        return found

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Rotary:
        """The rotation that `to_json` wrote.

        Raises:
            InputError: the data are no rotation.
        """
        try:
            freqs = data.get("freqs")
            table = None if freqs is None else tuple(float(value) for value in freqs)
            if (found := cls(**data | {"freqs": table}))._is_sound():
                return found
        except (AttributeError, TypeError, ValueError, OverflowError):
            pass
        raise InputError("this is not a rotation of keys", "the file is damaged")

    def _is_sound(self) -> bool:
        if type(self.dims) is not int or type(self.traditional) is not bool or not self.dims:
            return self == _NONE
        fits = self.freqs is None or (self.base is None and 2 * len(self.freqs) == self.dims)
        numbers = ((self.base or 0.0) if self.freqs is None else 1.0, self.scale, self.factor)
        fits &= self.dims > 0 and self.dims % 2 == 0 and all(0 < x < _LARGEST for x in numbers)
        return fits and all(x > 0 for x in self.freqs or ())


_NONE = Rotary()


def positions_of(tokens: int, tokens_seen: int, window: int = 0, sinks: int = 0) -> NDArray[Any]:
    """Positions in the text [tokens] of a cache entry's rows, in temporal order.

    Args:
        tokens: rows that the entry holds.
        tokens_seen, window, sinks: as in `LayerKV`.

    Raises:
        UsageError: no cache holds so many rows.
    """
    if tokens > tokens_seen or (tokens < tokens_seen and not window):
        raise UsageError(f"{tokens} rows are not what {tokens_seen} tokens leave", "check both")
    rows = np.arange(tokens, dtype=np.int32)
    return np.where(rows < sinks, rows, rows + (tokens_seen - tokens))


def rotaries(network: Any, layers: Sequence[LayerKV]) -> dict[Entry, Rotary | str]:
    """How the keys of each cache entry were rotated, or the reason why that cannot be undone.

    Args:
        network: mlx-lm's module, which is run on 25 tokens with a cache of its own.
        layers: what it left in the cache after a text.
    """
    try:
        entries, calls = _run(network)
        latent = any(hasattr(module, "kv_lora_rank") for module in network.modules())
        probes = {kv.layer: kv for kv in read_cache(entries, mx.float32)[0]}
        return {
            kv.layer: kv.unknown or _rotary_of(kv, probes[kv.layer], calls, latent)
            if kv.layer in probes
            else "the model makes a cache without this entry"
            for kv in layers
        }
    except Exception as error:  # mlx and mlx-lm raise whatever comes
        reason = f"the model cannot be run on a few tokens ({one_line(error)})"
        return {kv.layer: reason for kv in layers}


def _run(network: Any) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """A cache of one token, repeated, and the calls that may have rotated its keys.

    A call is a module and what it was given and returned, [1, heads, tokens, channels].
    """
    from mlx_lm.models.cache import make_prompt_cache

    cache: list[Any] = make_prompt_cache(network)
    calls: list[tuple[Any, ...]] = []

    def call(module: Any, x: mx.array, *args: Any, **options: Any) -> mx.array:
        returned = module(x, *args, **options)
        calls.append((module, x.astype(mx.float32), returned.astype(mx.float32)))
        return returned

    slots = [(m, name, m.get(name)) for m in network.modules() for name in _NAMES]
    slots = [slot for slot in slots if callable(slot[2])]
    try:
        for parent, name, module in slots:
            parent[name] = partial(call, module)
        for tokens in (_PREFILL, 1):
            mx.eval(network(mx.array([[_TOKEN] * tokens]), cache=cache), [c[1:] for c in calls])
    finally:
        for parent, name, module in slots:
            parent[name] = module
    steps = zip(calls[: len(calls) // 2], calls[len(calls) // 2 :], strict=True)
    joined = partial(np.concatenate, axis=2)
    return cache, [(m, joined([x, a]), joined([y, b])) for (m, x, y), (_, a, b) in steps]


def _rotary_of(kv: Any, probe: Any, calls: list[tuple[Any, ...]], latent: bool) -> Rotary | str:
    """The rotation of the call that made the keys, checked at the positions of the text."""
    keys = probe.keys
    places = positions_of(keys.shape[1], probe.tokens_seen, probe.window, probe.sinks)
    if kv.keys.shape[::2] != keys.shape[::2] or not mx.any(keys).item():
        return "the keys that the model makes are zero or of another shape"
    if any(_same(returned, places, probe.values) for _, _, returned in calls):
        return "the entry holds latents of multi-head latent attention"
    for module, given, returned in calls:
        if _same(returned, places, keys):
            rotary, raw = _described(module), mx.array(given[0][:, places])
            known = rotary._is_sound() and _agrees(rotary, module, kv.keys.shape, kv.tokens_seen)
            if known and _close(rotary.redo(raw, places), keys, _ROUNDING):
                return rotary
            return f"{type(module).__name__} rotates in a way that is not known"
    # rows of the same token differ by nothing but their rotation
    if not latent and _close(mx.zeros_like(keys) + keys[:, :1], keys, _ROUNDING):
        return _NONE
    return "no rotation was found whose result the entry holds"


def _same(returned: NDArray[Any], places: NDArray[Any], rows: mx.array) -> bool:
    """Whether a call [1, heads, all tokens, channels] returned just these rows."""
    whole = returned.shape == (1, rows.shape[0], _PREFILL + 1, rows.shape[2])
    return whole and np.array_equal(returned[0][:, places], np.array(rows))


def _described(module: Any) -> Rotary:
    """What the attributes of mlx's and mlx-lm's rotating modules say, or that they do nothing."""
    if (dims := getattr(module, "dims", getattr(module, "dim", None))) is None:
        return _NONE
    base = getattr(module, "base", getattr(module, "original_base", None))
    if (freqs := getattr(module, "_freqs", None)) is not None:
        base = None  # and the fewest digits that are the same float32
        freqs = tuple(float(str(value)) for value in np.array(freqs.astype(mx.float32)))
    factor = getattr(module, "mscale", getattr(module, "_scale", 1.0))
    scale, traditional = getattr(module, "scale", 1.0), getattr(module, "traditional", False)
    return Rotary(dims, traditional, base, freqs, scale, factor)


def _agrees(rotary: Rotary, module: Any, shape: Sequence[int], tokens_seen: int) -> bool:
    """Whether redo is the module and undo its inverse, at the start and the end of a text."""
    x = mx.random.normal((shape[0], min(8, tokens_seen), shape[2]), key=mx.random.key(0))
    for start in (0, tokens_seen - x.shape[1]):
        places = np.arange(start, start + x.shape[1])
        redone = rotary.redo(x, places)
        known = _close(redone, module(x[None], offset=start)[0], _TOLERANCE)
        if not known or not _close(rotary.undo(redone, places), x, _TOLERANCE):
            return False
    return True


def _close(found: mx.array, wanted: mx.array, tolerance: float) -> bool:
    return bool((mx.abs(found - wanted).max() <= tolerance * mx.abs(wanted).max()).item())
