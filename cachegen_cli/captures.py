"""Prefills: a model, texts, and the keys and values that they leave in the cache."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cachegen_cli.entrynotices import (
    by_class,
    ignored_notices,
    repeated_notices,
    shared_notices,
)
from cachegen_cli.errors import ModelError, UsageError
from cachegen_cli.identity import is_model
from cachegen_cli.infos import model_info
from cachegen_cli.kvbits import by_entry
from cachegen_cli.kvcache import FINGERPRINT, LayerKV, read_cache
from cachegen_cli.model import Model, load_model
from cachegen_cli.profiles import Profile
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.prompt import DEFAULT_SAMPLE, LONG_SAMPLE, Prompt, read_prompt
from cachegen_cli.ranks import gathered
from cachegen_cli.reading import cut, encode, prefill
from cachegen_cli.results.run import ModelInfo, Notice, PromptInfo, Skipped
from cachegen_cli.results.settings import StoredCodes
from cachegen_cli.results.spans import Entry, index_of, shifted
from cachegen_cli.rope import Rotary, rotaries
from cachegen_cli.rows import Context, without_model
from cachegen_cli.texts import (
    CONTINUATION,
    SAMPLE_CONTEXT,
    SHORTEST_CONTINUATION,
    Texts,
    continuation_of,
    texts_of,
)
from cachegen_cli.wording import counted


@dataclass(frozen=True)
class Live:
    """What a capture keeps for the model to read on from it.

    Attributes:
        cache: mlx-lm's prompt cache after the analysed tokens; fork it before reading on.
        continuation: the token ids that come next in the text.
    """

    model: Model
    cache: list[Any]
    continuation: tuple[int, ...]


@dataclass(frozen=True)
class Capture:
    """One prefill's keys and values, and what is said about it in every result.

    Attributes:
        layers: the analysed cache entries.
        skipped: the others.
        tokens: the analysed token ids.
        metadata: what mlx_lm.generate wants to find beside a prompt cache.
        live: None where no continuation was asked for.
        loaded: the model, for looking how it rotates keys.
        cache: mlx-lm's own, if it was to be kept.
    """

    layers: Sequence[LayerKV]
    skipped: tuple[Skipped, ...]
    model: ModelInfo
    prompt: PromptInfo
    notices: tuple[Notice, ...]
    timing: dict[str, float]
    tokens: tuple[int, ...]
    metadata: dict[str, str]
    live: Live | None = None
    loaded: Model | None = None
    cache: list[Any] | None = None

    @property
    def sharded(self) -> str:
        """How the model is in parts: "tensor", "pipeline", or not at all."""
        return self.loaded.sharded if self.loaded else ""

    @property
    def first_layer(self) -> int:
        """Of a model in parts, the first layer that is here."""
        return self.loaded.first_layer if self.loaded else 0

    @property
    def n_entries(self) -> int:
        """Analysed entries, of a pipeline's layers on all ranks."""
        here = len(self.layers)
        return sum(gathered(here)) if self.sharded == "pipeline" else here

    @property
    def fingerprint(self) -> str:
        """Return its model's; "" where no file tells it and the model is not at hand."""
        told = self.metadata.get(FINGERPRINT, "")
        return told or (self.loaded.fingerprint if self.loaded else "")

    def is_of(self, name: str) -> bool | None:
        """Tell whether a model's name stands for the one that made it, as far as that is known."""
        names = (self.model.id, self.metadata.get("model"))
        return is_model(name, names, self.fingerprint)

    @cached_property
    def stored(self) -> StoredCodes | None:
        """The entries that are quantized already, to which no settings apply."""
        codes = [kv.stored.text for kv in self.layers if kv.stored]
        if not codes:
            return None
        return StoredCodes("; ".join(dict.fromkeys(codes)), len(codes), len(self.layers))

    @property
    def context(self) -> Context:
        """What schemes may know of the text."""
        return Context(self.tokens, lambda layer: self.rotaries[layer])

    @cached_property
    def kv_bits(self) -> dict[Entry, str]:
        """What ``mlx_lm --kv-bits`` would do to each entry, where that can be told.

        The model is run on a few tokens to find out.
        """
        if self.sharded:
            return {}  # one process that fails would leave the others waiting
        if self.loaded is None:
            return {
                kv.layer: "crashes: RotatingKVCache Quantization NYI"
                for kv in self.layers
                if kv.cache == "RotatingKVCache"
            }
        places = [*(kv.layer for kv in self.layers), *(s.entry for s in self.skipped)]
        found = by_entry(self.loaded.network, max(map(index_of, places)) + 1)
        return {kv.layer: found[index_of(kv.layer)] for kv in self.layers}

    @cached_property
    def rotaries(self) -> dict[Entry, Rotary | str]:
        """How keys of each cache entry were rotated, or why that is not known.

        The model is run on a few tokens to find out.
        """
        if self.loaded is None:
            return {kv.layer: without_model(kv.layer) for kv in self.layers}
        return rotaries(self.loaded.network, self.layers)


def capture(
    model: str | Model | None = None, prompt: str | Prompt | None = None, **options: Any
) -> Capture:
    """Run a model over a prompt once and take the keys and values of every cache entry.

    Args:
        model: hub id, folder, .gguf file or a loaded `Model`; None for the default model.
        prompt: the text itself, or a `Prompt`; None for the bundled sample.
        options: as in `capture_texts`.

    Raises:
        CachegenError: a model or prompt that cannot be used; see `load_model` and `encode`.
    """
    return next(capture_texts(model, prompt, **options))


def capture_texts(
    model: str | Model | None = None,
    prompts: Texts = None,
    *,
    continuation: int | None = 0,
    chat: bool = False,
    max_prompt_tokens: int | None = None,
    adapter_path: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    profile: Profile | None = None,
    keep_cache: bool = False,
    max_kv_size: int | None = None,
    share: tuple[int, int] = (0, 1),
    shard: str = "",
    progress: Progress = no_progress,
) -> Iterator[Capture]:
    """A capture of each text, with the model loaded once; all texts are checked before any runs.

    Args:
        model: as in `capture`.
        prompts: one or several texts.
        continuation: tokens at the end of each text to leave to `quality`; 0 for none, None for
            256 or half of a shorter text. The bundled sample is then the long one, cut to 896
            tokens and these.
        chat: put the texts into the model's chat template.
        max_prompt_tokens: cut each text to its first tokens, the continuation included.
        adapter_path, revision, trust_remote_code: as in `load_model`.
        profile: is refused, before a text is read, unless it is of the model.
        keep_cache: keep mlx-lm's cache, too, to write it to a file.
        max_kv_size: tokens that the cache holds, as mlx-lm's option; many models ignore it.
        share: (rank, of how many) to read every so-many-th text alone.
        shard: as in `load_model`.
        progress: called with (stage, done, of).

    Raises:
        CachegenError: as in `capture`.
    """
    if continuation is not None and continuation != 0 and continuation < SHORTEST_CONTINUATION:
        raise UsageError(
            f"a continuation of {counted(continuation, 'token')} predicts nothing",
            f"give {SHORTEST_CONTINUATION} or more",
        )
    if prompts is None:
        prompts = read_prompt(None, LONG_SAMPLE if continuation != 0 else DEFAULT_SAMPLE)
        if continuation != 0 and max_prompt_tokens is None:
            max_prompt_tokens = SAMPLE_CONTEXT + (continuation or CONTINUATION)
    texts = texts_of(prompts)
    started = time.perf_counter()
    if isinstance(model, Model):
        if adapter_path or revision:
            raise UsageError(
                "a model that is loaded takes no adapters and no revision", "give load_model them"
            )
    else:
        model = load_model(
            model,
            adapter_path=adapter_path,
            revision=revision,
            trust_remote_code=trust_remote_code,
            shard=shard,
            progress=progress,
        )
    if profile is not None:
        profile.check(model.fingerprint)
    load_seconds = time.perf_counter() - started
    metadata = {
        "model": model.path,
        "tokenizer_config": json.dumps({"trust_remote_code": trust_remote_code}),
    }
    encoded = []
    for text in texts:
        given = encode(model, text, chat=chat)
        tokens = cut(model, given, max_prompt_tokens)
        held_back = continuation_of(text, len(tokens), continuation)
        info = PromptInfo(
            text.source, len(tokens) - held_back, text.sha256, len(given), chat, held_back
        )
        encoded.append((info, tokens))
    for info, tokens in encoded[share[0] :: share[1]]:
        yield _run(model, info, tokens, metadata, load_seconds, keep_cache, max_kv_size, progress)
        load_seconds = 0.0


def _run(
    model: Model,
    info: PromptInfo,
    tokens: list[int],
    metadata: dict[str, str],
    load_seconds: float,
    keep_cache: bool,
    max_kv_size: int | None,
    progress: Progress,
) -> Capture:
    started = time.perf_counter()
    cache = prefill(model, tokens[: info.tokens], progress, max_kv_size)
    kept = keep_cache or info.continuation_tokens
    layers, skipped = read_cache(cache, model.dtype, model.latent_ranks, free=not kept)
    if not layers:
        raise ModelError(
            f"{model.id} keeps no KV cache that can be analysed: " + "; ".join(by_class(skipped)),
            "only attention caches can be; a recurrent state has no tokens to code",
        )
    if model.sharded == "tensor" and any(kv.role != "kv" for kv in layers):
        raise ModelError(
            f"{model.id} keeps latents, which every process would hold whole",
            "take --shard pipeline or prompts",
        )
    continuation = tuple(tokens[info.tokens :])
    return Capture(
        layers=tuple(layers),
        skipped=tuple(replace(s, entry=shifted(s.entry, model.first_layer)) for s in skipped),
        model=model_info(model, layers),
        prompt=info,
        notices=(
            *model.notices,
            *shared_notices(model, cache, layers),
            *repeated_notices(model, layers),
            *ignored_notices(model, max_kv_size),
        ),
        timing={
            "load_seconds": load_seconds,
            "prefill_seconds": time.perf_counter() - started,
        },
        tokens=tuple(tokens[: info.tokens]),
        metadata=metadata,
        live=Live(model, cache, continuation) if continuation else None,
        loaded=model,
        cache=cache if keep_cache else None,
    )
