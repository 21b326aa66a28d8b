"""Keys and values made on the spot."""

from __future__ import annotations

from cachegen_cli.device import mx

from cachegen_cli.kvcache import LayerKV  # isort: skip


def layer(tokens: int, heads: int = 4, dim: int = 64, place: int = 0, dtype=mx.float16) -> LayerKV:
    """An entry whose keys' channels have scales of their own."""
    a, b, c = mx.random.split(mx.random.key(place), 3)
    scale = mx.random.uniform(0.2, 4, (heads, 1, dim), key=c)
    keys = (mx.random.normal((heads, tokens, dim), key=a) * scale).astype(dtype)
    values = mx.random.normal((heads, tokens, dim), key=b).astype(dtype)
    mx.eval(keys, values)
    return LayerKV(place, "KVCache", keys, values, tokens)
