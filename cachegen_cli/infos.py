"""What is said of the program and of the model in every result."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from cachegen_cli import __version__
from cachegen_cli.device import mx
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.model import Model, dtype_name
from cachegen_cli.ranks import gathered
from cachegen_cli.results.run import ModelInfo


def tool_versions() -> dict[str, str]:
    """Versions and device that figures may depend on."""
    return {
        "name": "cachegen",
        "version": __version__,
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "device": str(mx.default_device().type).removeprefix("DeviceType."),
        "platform": sys.platform,
    }


def model_info(model: Model, layers: Sequence[LayerKV]) -> ModelInfo:
    """The model that ran, with the shapes of its analysed entries."""
    shapes = [(kv.keys.shape[0], kv.keys.shape[2]) for kv in layers]
    if model.sharded:
        parts = gathered(shapes)
        if model.sharded == "tensor":  # a layer's heads are on all ranks
            shapes = [(sum(part[i][0] for part in parts), dim) for i, (_, dim) in enumerate(shapes)]
        else:  # rank 0 holds the last layers
            shapes = [shape for part in reversed(parts) for shape in part]
    return ModelInfo(
        id=model.id,
        source=model.source,
        layers=model.n_layers,
        kv_heads=one_or_all(heads for heads, _ in shapes),
        head_dim=one_or_all(dim for _, dim in shapes),
        dtype=dtype_name(model.dtype),
        compute_dtype=dtype_name(model.compute_dtype),
    )


def one_or_all(values: Iterable[int]) -> int | list[int]:
    """The value that all share, or the list."""
    listed = list(values)
    return listed[0] if len(set(listed)) == 1 else listed
