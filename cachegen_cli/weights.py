"""What tells a model from others: its config, and the first numbers of every weight."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import numpy as np

from cachegen_cli.device import mx

_OF_NO_MATTER = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")
_SAMPLED = 64  # first numbers of each weight that make its fingerprint


def weights_of(network: Any) -> dict[str, mx.array]:
    """Return a network's weights by their names."""
    from mlx.utils import tree_flatten

    return dict(tree_flatten(network.parameters()))


def dtype_of(weights: dict[str, mx.array]) -> mx.Dtype:
    """Return the floating dtype that most of the weights have: that of the activations."""
    sizes: Counter[mx.Dtype] = Counter()
    for array in weights.values():
        if mx.issubdtype(array.dtype, mx.floating):
            sizes[array.dtype] += array.size
    return sizes.most_common(1)[0][0] if sizes else mx.float16


def kv_dtype(own: mx.Dtype) -> mx.Dtype:
    """Return the 16-bit dtype of the KV cache of a model whose weights have a dtype."""
    return own if own.size == 2 else mx.float16


def fingerprint(config: dict[str, Any], weights: dict[str, mx.array], dtype: mx.Dtype) -> str:
    """Hash a config and weights, which are let go one by one.

    Args:
        dtype: in which numbers are compared, whatever the model computes in.
    """
    told = {k: v for k, v in config.items() if k not in _OF_NO_MATTER}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode())
    for name in sorted(weights):
        weight = weights.pop(name)
        floating = mx.issubdtype(weight.dtype, mx.floating)
        sample = weight.reshape(-1)[:_SAMPLED].astype(dtype if floating else weight.dtype)
        digest.update(f"{name} {weight.shape} ".encode())
        digest.update(np.asarray(sample.view(mx.uint8)).tobytes())
    return digest.hexdigest()
