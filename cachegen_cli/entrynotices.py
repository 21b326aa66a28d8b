"""What is said of a cache's entries, and of the model that made them, beside their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachegen_cli.device import mx
from cachegen_cli.identity import is_model
from cachegen_cli.kvcache import FINGERPRINT, LayerKV, copies
from cachegen_cli.model import Model
from cachegen_cli.results.run import Notice, Skipped
from cachegen_cli.results.spans import Entry
from cachegen_cli.wording import counted


def shared_notices(model: Model, cache: Sequence[Any], layers: Sequence[LayerKV]) -> list[Notice]:
    """Say which layers share a cache, or hold copies of another's."""
    notices = []
    held, n = len(cache), len(model.network.layers)
    if held < n:
        notices.append(
            Notice(
                "shared-cache",
                f"{counted(n, 'layer')} share {counted(held, 'cache entry')}: without keys and "
                f"values of their own are {n - held}",
            )
        )
    pairs = copies(layers)
    if pairs:
        size = sum(kv.keys.nbytes + kv.values.nbytes for kv, _ in pairs)
        notices.append(copies_notice([(kv.layer, other.layer) for kv, other in pairs], size))
    return notices


def copies_notice(pairs: Sequence[tuple[Entry, Entry]], size: int) -> Notice:
    """Say that entries are copies of earlier ones, and how many bytes that is."""
    named = ", ".join(f"{one} of {other}" for one, other in pairs[:4])
    named += ", ..." if len(pairs) > 4 else ""
    entries = "entries are exact copies" if len(pairs) > 1 else "entry is an exact copy"
    return Notice(
        "copied-entries",
        f"{len(pairs)} cache {entries} of others ({named}): {size} bytes are there twice",
    )


def repeated_notices(model: Model, layers: Sequence[LayerKV]) -> list[Notice]:
    """Say that keys hold the rotated part of expanded latent attention once for every head."""
    ranks = model.latent_ranks
    if ranks is None:
        return []
    dims = ranks[1]
    repeated = [
        kv
        for kv in layers
        if kv.keys.shape[0] > 1
        and kv.keys.shape[2] > dims
        and mx.array_equal(
            kv.keys[1:, :, -dims:], mx.broadcast_to(kv.keys[:1, :, -dims:], _less(kv, dims))
        ).item()
    ]
    if not repeated:
        return []
    size = sum(2 * (kv.keys.shape[0] - 1) * kv.keys.shape[1] * dims for kv in repeated)
    return [
        Notice(
            "repeated-rope-key",
            f"the keys of {counted(len(repeated), 'cache entry')} hold the same "
            f"{counted(dims, 'rotated channel')} in every head (multi-head latent attention, "
            f"expanded): {size:,} of the 16-bit bytes are copies",
        )
    ]


def _less(kv: LayerKV, dims: int) -> tuple[int, int, int]:
    """Shape of the rotated channels of all heads but one."""
    heads, tokens, _ = kv.keys.shape
    return heads - 1, tokens, dims


def ignored_notices(model: Model, max_kv_size: int | None) -> list[Notice]:
    """Say that a model makes caches of its own, whatever size was asked for."""
    if max_kv_size is None or not hasattr(model.network, "make_cache"):
        return []
    return [
        Notice(
            "max-kv-size-ignored",
            f"{model.id} makes its own caches, so --max-kv-size {max_kv_size} changes nothing: "
            "mlx-lm ignores it, too",
        )
    ]


def model_notices(metadata: Mapping[str, str], model: Model) -> list[Notice]:
    """Say where a file's cache is of another model than the one given, or of which is not known."""
    named, told = metadata.get("model", ""), metadata.get(FINGERPRINT)
    said = f"the file says that '{named}' made it" if named else "the file does not name its model"
    if told:
        same: bool | None = told == model.fingerprint
    else:
        same = is_model(named, (model.id, model.path), model.fingerprint) if named else None
    if same:
        return []
    if same is None:
        why = f"whether that is '{model.id}' cannot be checked here"
        return [Notice("model-not-checked", f"{said}; {why}")]
    return [
        Notice(
            "another-model",
            f"{said}; the model here is '{model.id}', which has another config or other weights",
        )
    ]


def by_class(skipped: Sequence[Skipped]) -> list[str]:
    """Return what was skipped, a phrase a class."""
    phrases = []
    for name, reason in dict.fromkeys((s.cache, s.reason) for s in skipped):
        sizes = [s.bytes for s in skipped if (s.cache, s.reason) == (name, reason)]
        phrases.append(f"{len(sizes)} x {name}, {counted(sum(sizes), 'byte')}: {reason}")
    return phrases
