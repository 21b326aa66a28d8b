"""Run beside another version of mlx-lm, which this project does not need.

elsewhere.py write FILE STREAMS  its classes, and the streams that they were fed
elsewhere.py compare ONE OTHER   exit 0 if two files load as the same caches
elsewhere.py chunk FILE STREAMS  a chunk that lost its first tokens, beside a cache of all
"""

from __future__ import annotations

import sys

import mlx.core as mx
from mlx_lm.models import cache as classes

HEADS, DIM, TOKENS = 2, 32, 40


def rows(seed):
    shape = (1, HEADS, TOKENS, DIM)
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(mx.float16)


def filled(cache, number, steps=(TOKENS,)):
    start = 0
    for step in steps:
        here = slice(start, start + step)
        cache.update_and_fetch(rows(2 * number)[:, :, here], rows(2 * number + 1)[:, :, here])
        start += step
    return cache


def write(file, streams):
    """Each class of the version that goes to a file, under the number of its streams."""
    caches = [
        filled(classes.KVCache(), 0),
        filled(classes.RotatingKVCache(max_size=16, keep=4), 1, [20, *[1] * 20]),
        filled(classes.ChunkedKVCache(64), 2),
        filled(classes.QuantizedKVCache(group_size=32, bits=8), 3),
        filled(classes.BatchKVCache([3]), 4),
        classes.CacheList(filled(classes.KVCache(), 5), filled(classes.KVCache(), 6)),
    ]
    classes.save_prompt_cache(file, caches, {"model": "a model"})
    mx.save_safetensors(streams, {str(stream): rows(stream) for stream in range(14)})


def chunk(file, streams):
    """201 tokens, of which a chunk of 128 keeps 73: a step cuts its buffer of 256 rows."""
    x = mx.random.normal((1, HEADS, 201, DIM), key=mx.random.key(0)).astype(mx.float16)
    caches = [classes.ChunkedKVCache(128), classes.KVCache()]
    for part in (x[:, :, :200], x[:, :, 200:]):
        caches[0].maybe_trim_front()
        for cache in caches:
            cache.update_and_fetch(part, part + 1)
    classes.save_prompt_cache(file, caches, {"model": "a model"})
    mx.save_safetensors(streams, {"0": x})


def same(one, other):
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, mx.array):
        return one.shape == other.shape and mx.array_equal(one, other).item()
    return one == other


def compare(one, other):
    first, second = (classes.load_prompt_cache(file) for file in (one, other))
    assert [type(cache) for cache in first] == [type(cache) for cache in second]
    for cache, again in zip(first, second, strict=True):
        assert same(cache.state, again.state), type(cache).__name__
        assert cache.meta_state == again.meta_state, type(cache).__name__


if __name__ == "__main__":
    {"write": write, "compare": compare, "chunk": chunk}[sys.argv[1]](*sys.argv[2:])
