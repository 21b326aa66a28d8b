"""What an entry's keys and values are, where they are not keys and values of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cachegen_cli.device import mx
from cachegen_cli.kvcache.layers import LayerKV
from cachegen_cli.results.run import Skipped

Ranks = tuple[int, int] | None
"""(kv_lora_rank, qk_rope_head_dim) of the model's config; None where it is not known."""


def assign_roles(
    layers: Sequence[LayerKV], ranks: Ranks = None
) -> tuple[list[LayerKV], list[Skipped]]:
    """(entries with their roles, values that only fill a place).

    An entry of one head whose sizes are the latent's rank and the rotary dims holds the latents of
    multi-head latent attention; without the config one is taken for that whose values are
    narrower. The second part of an entry of which values are empty, or all zero in its one head,
    holds the keys by which sparse attention chooses.
    """
    found: list[LayerKV] = []
    skipped: list[Skipped] = []
    for kv in layers:
        heads, _, key_dim = kv.keys.shape
        value_dim = kv.values.shape[2]
        filler = str(kv.layer).endswith("/1") and _fills_a_place(kv.values)
        if filler and (heads == 1 or not value_dim):
            if value_dim:
                size = kv.values.nbytes
                reason = "the values of an index of sparse attention are all zero"
                skipped.append(Skipped(kv.layer, kv.cache, size, reason))
            found.append(replace(kv, role="index", values=kv.values[..., :0]))
        elif heads == 1 and ((key_dim, value_dim) == ranks if ranks else 0 < value_dim < key_dim):
            found.append(replace(kv, role="latent"))
        else:
            found.append(kv)
    return found, skipped


def _fills_a_place(values: mx.array) -> bool:
    return not values.size or not mx.any(values).item()


def copies(layers: Sequence[LayerKV]) -> list[tuple[LayerKV, LayerKV]]:
    """(entry, earlier entry of which it is an exact copy) of layers that share their cache."""
    pairs = []
    for place, kv in enumerate(layers):
        for other in reversed(layers[:place]):
            if kv.keys.shape != other.keys.shape or kv.values.shape != other.values.shape:
                continue
            # one row is enough to tell most apart
            if (
                mx.array_equal(kv.keys[:, -1], other.keys[:, -1]).item()
                and (
                    mx.array_equal(kv.keys, other.keys) & mx.array_equal(kv.values, other.values)
                ).item()
            ):
                pairs.append((kv, other))
                break
    return pairs
