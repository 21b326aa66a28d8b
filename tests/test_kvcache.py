from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from cachegen_cli.kvcache import copies, fork, make_cache, read_cache, read_entry, untouched

PLANS = {
    "one shot": [40],
    "chunks": [16, 16, 8],
    "token by token": [1] * 40,
    "prompt, then steps": [20] + [1] * 20,
    "last token alone": [39, 1],
    "one over a buffer": [256, 1, 300],
    "past the window in one": [100],
    "past the window in chunks": [30, 30, 30],
    "the window exactly": [24],
    "one after the window": [24, 1],
    "steps, then a chunk": [1] * 10 + [30, 1, 1],
    "odd chunks": [5, 7, 11, 13, 1, 2],
    "a chunk in a full ring": [40, *[1] * 9, 17, *[1] * 30],
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


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_concatenating_cache_gives_the_stream(plan):
    cache = ConcatenateKVCache()
    keys, values = fill(cache, plan)
    cache.trim(3)
    [kv], _ = read_cache([cache], mx.float16)
    assert mx.array_equal(kv.keys, keys[:, :-3]) and mx.array_equal(kv.values, values[:, :-3])


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_chunked_cache_gives_the_rows_from_its_start_on(plan):
    cache = ChunkedKVCache(24)
    keys, _ = stream(sum(plan))
    start = 0
    for step in plan:  # as llama4 does: trimmed before each update
        cache.maybe_trim_front()
        end = start + step
        cache.update_and_fetch(keys[:, :, start:end], keys[:, :, start:end])
        start = end
    [kv], _ = read_cache([cache], mx.float16)
    assert kv.keys[0, :, 0].tolist() == [*range(cache.start_position, sum(plan))]
    assert (kv.tokens_seen, kv.window) == (sum(plan), 24)
    assert kv.allocated >= kv.keys.shape[1]
    [again], _ = read_cache(make_cache([kv]), mx.float16)
    assert mx.array_equal(again.keys, kv.keys) and again.tokens_seen == kv.tokens_seen


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_cache_gives_its_own_codes(plan, bits):
    tokens = sum(plan)
    cache = QuantizedKVCache(group_size=32, bits=bits)
    x = mx.random.normal((1, 2, tokens, 64), key=mx.random.key(tokens)).astype(mx.float16)
    start = 0
    for step in plan:
        cache.update_and_fetch(x[:, :, start : start + step], x[:, :, start : start + step])
        start += step
    [kv], _ = read_cache([cache], mx.float16)
    packed = mx.quantize(x[0], group_size=32, bits=bits)
    assert all(mx.array_equal(a, b) for a, b in zip(kv.stored.keys, packed, strict=True))
    wanted = mx.dequantize(*packed, group_size=32, bits=bits)
    assert mx.allclose(kv.keys, wanted, atol=2e-3)
    assert kv.stored.text == f"mlx {bits} bits, groups of 32"


def test_parts_of_an_entry_have_places_of_their_own():
    state = ArraysCache(1)
    state[0] = mx.zeros((1, 8), mx.float16)
    inner = KVCache()
    fill(inner, [10])
    layers, skipped = read_cache([CacheList(state, inner), CacheList(inner, inner)], mx.float16)
    assert [kv.layer for kv in layers] == ["0/1", "1/0", "1/1"]
    assert [s.entry for s in skipped] == ["0/0"]
    [kv] = [kv for kv in layers if kv.layer == "1/1"]
    cache = [CacheList(state, inner), CacheList(inner, inner)]
    assert mx.array_equal(untouched(cache, "1/1").keys, kv.keys)
    half = replace(kv, keys=kv.keys / 2)
    forked = fork(cache, [half])
    assert mx.array_equal(untouched(forked, "1/1").keys, half.keys)
    assert mx.array_equal(untouched(forked, "1/0").keys, kv.keys)
    assert mx.array_equal(untouched(cache, "1/1").keys, kv.keys)


@pytest.mark.parametrize("window", [None, 12])
def test_each_sequence_of_a_batch(window):
    def made(tokens: int):
        cache = RotatingKVCache(window) if window else KVCache()
        fill(cache, [tokens])
        return cache

    lengths = [5, 9, 20]
    merged = type(made(1)).merge([made(n) for n in lengths])
    layers, _ = read_cache([merged], mx.float16)
    assert [kv.layer for kv in layers] == ["0#0", "0#1", "0#2"]
    for n, kv in zip(lengths, layers, strict=True):
        first = max(0, n - window) if window else 0
        assert kv.keys[0, :, 0].tolist() == [*range(first, n)]
        assert kv.tokens_seen == n


def test_a_batch_of_windows_as_mlx_lm_takes_it_out():
    from mlx_lm.models.cache import BatchRotatingKVCache

    for steps in ([20], [20, 1], [9, *[1] * 30]):
        cache = BatchRotatingKVCache(16, [0, 3])
        for n in steps:
            x = mx.random.normal((2, 1, n, 4), key=mx.random.key(n)).astype(mx.float16)
            cache.update_and_fetch(x, -x)
        layers, _ = read_cache([cache], mx.float16)
        for place, kv in enumerate(layers):
            [wanted] = read_entry(0, cache.extract(place), mx.float16)
            assert mx.array_equal(kv.keys, wanted.keys), steps
            assert mx.array_equal(kv.values, wanted.values)


def test_several_sequences_in_a_plain_cache():
    cache = KVCache()
    x = mx.arange(2 * 3 * 7 * 4, dtype=mx.float16).reshape(2, 3, 7, 4)
    cache.update_and_fetch(x, x)
    layers, _ = read_cache([cache], mx.float16)
    assert [kv.layer for kv in layers] == ["0#0", "0#1"]
    assert all(mx.array_equal(kv.keys, x[i]) for i, kv in enumerate(layers))


def latent(heads: int, rank: int, dims: int, zero: bool = False):
    cache = KVCache()
    x = mx.random.normal((1, heads, 6, rank))
    y = mx.zeros((1, heads, 6, dims)) if zero else mx.random.normal((1, heads, 6, dims))
    cache.update_and_fetch(x.astype(mx.float16), y.astype(mx.float16))
    return cache


def test_roles():
    cache = [
        latent(1, 16, 4), latent(2, 16, 4), latent(1, 8, 8),
        CacheList(latent(1, 16, 4), latent(1, 8, 16, zero=True)),
        CacheList(latent(2, 8, 8), latent(1, 8, 0)),
    ]  # fmt: skip
    layers, skipped = read_cache(cache, mx.float16, (16, 4))
    roles = [(kv.layer, kv.role) for kv in layers]
    assert roles == [
        (0, "latent"), (1, "kv"), (2, "kv"), ("3/0", "latent"), ("3/1", "index"), ("4/0", "kv"),
        ("4/1", "index"),
    ]  # fmt: skip
    assert all(kv.values.shape[2] == 0 for kv in layers if kv.role == "index")
    assert [(s.entry, s.bytes) for s in skipped] == [("3/1", 2 * 6 * 16)]
    assert [kv.role for kv in read_cache(cache[:3], mx.float16)[0]] == ["latent", "kv", "kv"]


def test_copies_are_found():
    cache = [latent(2, 8, 8) for _ in range(3)]
    cache.insert(2, cache[0])
    layers, _ = read_cache(cache, mx.float16)
    assert [(a.layer, b.layer) for a, b in copies(layers)] == [(2, 0)]
