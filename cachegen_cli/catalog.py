"""The models on this machine and what their KV caches weigh.

No weights are read: mlx-lm builds each model lazily from its config, one token is traced
through it without evaluation, and the shapes in the model's own caches are read. So
shared layers, latents, sliding windows and recurrent states are counted as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cachegen_cli import gguf
from cachegen_cli.device import mx
from cachegen_cli.infos import one_or_all, tool_versions
from cachegen_cli.model import BUNDLED_ID, bundled_file, context_of
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.results.models import ModelList, ModelRow

BYTES_PER_NUMBER = 2  # 16 bits


def list_models(progress: Progress = no_progress) -> ModelList:
    """Every model that is bundled or in the Hugging Face cache, by name."""
    found = list(_found())
    rows = []
    for done, (model_id, source, folder) in enumerate(found):
        progress("models", done, len(found))
        rows.append(_row(model_id, source, folder))
    return ModelList(tool_versions(), tuple(rows))


def _found() -> Iterator[tuple[str, str, Path]]:
    """(id, source, folder) of each model; the bundled one is converted if it has not been."""
    if file := bundled_file():
        yield BUNDLED_ID, "bundled", gguf.model_folder(file)
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except (CacheNotFound, ValueError):  # none there, or a file in its place
        return
    for repo in sorted(repos, key=lambda r: r.repo_id):
        if repo.repo_type != "model":
            continue
        newest = max(repo.revisions, key=lambda r: r.last_modified, default=None)
        if newest:
            yield repo.repo_id, "hub", newest.snapshot_path


def _row(model_id: str, source: str, folder: Path) -> ModelRow:
    try:
        config = json.loads((folder / "config.json").read_text())
        layers, entries = probe(config)
    except Exception as error:  # each architecture fails in its own way; it is listed
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return ModelRow(model_id, source, None, problem=f"not sized ({reason})")
    kv = [e for e in entries if e["heads"]]
    if not kv:
        return ModelRow(model_id, source, layers, context=context_of(config), problem="no KV cache")

    def at(tokens: int) -> int:
        return sum(
            e["token_bytes"] * min(tokens, e["window"] or tokens) + e["state_bytes"]
            for e in entries
        )

    return ModelRow(
        id=model_id,
        source=source,
        layers=layers,
        kv_heads=one_or_all(e["heads"] for e in kv),
        head_dim=one_or_all(e["head_dim"] for e in kv),
        context=context_of(config),
        bytes_per_token=sum(e["token_bytes"] for e in entries),
        bytes_8k=at(8 * 1024),
        bytes_32k=at(32 * 1024),
        bytes_128k=at(128 * 1024),
    )


def probe(config: dict[str, Any]) -> tuple[int, list[dict[str, int]]]:
    """(layers, one size by cache entry) of a model with this config.json, without weights.

    An entry has ``heads`` and ``head_dim`` of its keys, ``token_bytes`` in 16 bits,
    ``window`` in tokens (0: unbounded) and ``state_bytes`` that do not grow.
    """
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import _get_classes

    model_class, arguments = _get_classes(config)
    network = model_class(arguments.from_dict(config))
    cache = make_prompt_cache(network)
    network(mx.array([[0]]), cache=cache)  # traced, never evaluated
    return len(network.layers), [size for entry in cache for size in _sizes(entry)]


def _sizes(entry: Any) -> list[dict[str, int]]:
    if parts := getattr(entry, "caches", None):
        return [size for part in parts for size in _sizes(part)]
    size = {"heads": 0, "head_dim": 0, "token_bytes": 0, "window": 0, "state_bytes": 0}
    keys, values = getattr(entry, "keys", None), getattr(entry, "values", None)
    if isinstance(keys, mx.array) and isinstance(values, mx.array):
        per_token = keys.shape[1] * (keys.shape[3] + values.shape[3])
        size["heads"], size["head_dim"] = keys.shape[1], keys.shape[3]
        size["token_bytes"] = per_token * BYTES_PER_NUMBER
        size["window"] = getattr(entry, "max_size", 0) or getattr(entry, "chunk_size", 0) or 0
    else:
        state = getattr(entry, "cache", None) or []
        size["state_bytes"] = sum(x.size * BYTES_PER_NUMBER for x in state if x is not None)
    return [size]
