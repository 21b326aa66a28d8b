"""One prefill: a model, a prompt, and the keys and values that they leave in the cache."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from cachegen_cli.device import mx
from cachegen_cli.errors import InputError, ModelError
from cachegen_cli.kvcache import LayerKV, read_cache
from cachegen_cli.model import Model, cut, dtype_name, encode, load_model, prefill
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.prompt import Prompt, read_prompt
from cachegen_cli.results import ModelInfo, Notice, PromptInfo, Skipped


@dataclass(frozen=True)
class Capture:
    """One prefill's keys and values, and what is said about it in every result.

    Attributes:
        layers: the analysed cache entries.
        skipped: the others.
        tokens: the prompt's token ids.
        metadata: what mlx_lm.generate wants to find beside a prompt cache.
    """

    layers: tuple[LayerKV, ...]
    skipped: tuple[Skipped, ...]
    model: ModelInfo
    prompt: PromptInfo
    notices: tuple[Notice, ...]
    timing: dict[str, float]
    tokens: tuple[int, ...]
    metadata: dict[str, str]


def capture(
    model: str | Model | None = None,
    prompt: str | Prompt | None = None,
    *,
    chat: bool = False,
    max_prompt_tokens: int | None = None,
    adapter_path: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress = no_progress,
) -> Capture:
    """Run a model over a prompt once and take the keys and values of every cache entry.

    Args:
        model: hub id, folder, .gguf file or a loaded `Model`; None for the default model.
        prompt: the text itself, or a `Prompt`; None for the bundled sample.
        chat: put the prompt into the model's chat template.
        max_prompt_tokens: cut the prompt to its first tokens.
        adapter_path, revision, trust_remote_code: as in `load_model`.
        progress: called with (stage, done, of).

    Raises:
        CachegenError: a model or prompt that cannot be used; see `load_model` and `encode`.
    """
    if prompt is None:
        prompt = read_prompt(None)
    elif isinstance(prompt, str):
        prompt = Prompt(prompt)
    if not prompt.text:
        raise InputError("the prompt is empty", "give a text")
    if any(0xD800 <= ord(c) < 0xE000 for c in prompt.text):
        raise InputError("the prompt holds lone surrogates, which are no text", "decode it first")
    started = time.perf_counter()
    if not isinstance(model, Model):
        model = load_model(
            model,
            adapter_path=adapter_path,
            revision=revision,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    loaded = time.perf_counter()
    given = encode(model, prompt, chat=chat)
    tokens = cut(model, given, max_prompt_tokens)
    layers, skipped = read_cache(prefill(model, tokens, progress), model.dtype)
    if not layers:
        raise ModelError(
            f"{model.id} keeps no KV cache that can be analysed: " + "; ".join(_by_class(skipped)),
            "this version analyses KVCache and RotatingKVCache entries",
        )
    return Capture(
        layers=tuple(layers),
        skipped=tuple(skipped),
        model=_model_info(model, layers),
        prompt=PromptInfo(prompt.source, len(tokens), prompt.sha256, len(given), chat),
        notices=tuple(model.notices),
        timing={
            "load_seconds": loaded - started,
            "prefill_seconds": time.perf_counter() - loaded,
        },
        tokens=tuple(tokens),
        metadata={
            "model": model.path,
            "tokenizer_config": json.dumps({"trust_remote_code": trust_remote_code}),
        },
    )


def tool_versions() -> dict[str, str]:
    """Versions and device that figures may depend on."""
    return {
        "name": "cachegen",
        "version": version("cachegen-cli"),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "device": str(mx.default_device().type).removeprefix("DeviceType."),
        "platform": sys.platform,
    }


def _model_info(model: Model, layers: Sequence[LayerKV]) -> ModelInfo:
    return ModelInfo(
        id=model.id,
        source=model.source,
        layers=len(model.network.layers),
        kv_heads=one_or_all(kv.keys.shape[0] for kv in layers),
        head_dim=one_or_all(kv.keys.shape[2] for kv in layers),
        dtype=dtype_name(model.dtype),
        compute_dtype=dtype_name(model.compute_dtype),
    )


def _by_class(skipped: Sequence[Skipped]) -> list[str]:
    """What was skipped, a phrase a class."""
    phrases = []
    for name, reason in dict.fromkeys((s.cache, s.reason) for s in skipped):
        sizes = [s.bytes for s in skipped if (s.cache, s.reason) == (name, reason)]
        phrases.append(f"{len(sizes)} x {name}, {sum(sizes)} bytes: {reason}")
    return phrases


def one_or_all(values: Iterable[int]) -> int | list[int]:
    """The value that all share, or the list."""
    listed = list(values)
    return listed[0] if len(set(listed)) == 1 else listed
