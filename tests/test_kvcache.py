from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from cachegen_cli.kvcache import read_cache

PLANS = {
    "one shot": [40],
    "chunks": [16, 16, 8],
    "token by token": [1] * 40,
    "prompt, then steps": [20] + [1] * 20,
    "last token alone": [39, 1],
    "one over a buffer": [256, 1, 300],
    "past the window in one": [100],
    "past the window in chunks": [30, 30, 30],
}


def stream(tokens: int):
    """K and V whose rows name themselves; widths differ."""
    row = mx.arange(tokens, dtype=mx.float16)[None, None, :, None]
    return mx.broadcast_to(row, (1, 2, tokens, 4)), mx.broadcast_to(-row, (1, 2, tokens, 3))


def fill(cache, plan):
    keys, values = stream(sum(plan))
    start = 0
    for step in plan:
        end = start + step
        cache.update_and_fetch(keys[:, :, start:end], values[:, :, start:end])
        start = end
    return keys[0], values[0]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_growing_cache_gives_the_stream_without_padding(plan):
    cache = KVCache()
    keys, values = fill(cache, plan)
    [kv], skipped = read_cache([cache], mx.float16)
    assert not skipped
    assert mx.array_equal(kv.keys, keys) and mx.array_equal(kv.values, values)
    assert (kv.cache, kv.tokens_seen) == ("KVCache", sum(plan))


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_rotating_cache_gives_sinks_and_window_in_temporal_order(plan, keep):
    cache = RotatingKVCache(max_size=24, keep=keep)
    fill(cache, plan)
    [kv], _ = read_cache([cache], mx.float16)
    seen = sum(plan)
    kept = [*range(keep), *range(seen - (24 - keep), seen)] if seen > 24 else [*range(seen)]
    assert kv.keys[0, :, 0].tolist() == kept
    assert kv.values[0, :, 0].tolist() == [-row for row in kept]
    assert kv.tokens_seen == seen


def test_trimmed_rows_are_not_read():
    cache = KVCache()
    keys, _ = fill(cache, [40])
    cache.trim(7)
    [kv], _ = read_cache([cache], mx.float16)
    assert mx.array_equal(kv.keys, keys[:, :33])


def test_values_are_cast_to_the_dtype():
    cache = KVCache()
    cache.update_and_fetch(mx.full((1, 1, 3, 4), 1.0001), mx.ones((1, 1, 3, 4)))
    [kv], _ = read_cache([cache], mx.bfloat16)
    assert kv.keys.dtype == kv.values.dtype == mx.bfloat16


def test_other_classes_and_empty_entries_are_skipped_with_a_reason():
    state = ArraysCache(2)
    state[0] = mx.zeros((1, 3, 8), mx.float16)
    layers, skipped = read_cache([state, KVCache(), object()], mx.float16)
    assert not layers
    assert [(s.entry, s.cache, s.bytes) for s in skipped] == [
        (0, "ArraysCache", 48), (1, "KVCache", 0), (2, "object", 0),
    ]  # fmt: skip
    assert all(s.reason for s in skipped)
