"""Text through a model: into tokens, into a KV cache, and on from one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cachegen_cli.device import mx, on_cpu
from cachegen_cli.errors import InputError, ModelError, UsageError
from cachegen_cli.model import Model, number_in, one_line
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.prompt import Prompt
from cachegen_cli.wording import counted

# mlx-lm's own step, and one short enough on a CPU to show progress and to be interrupted
_PREFILL_STEP, _CPU_PREFILL_STEP = 2048, 256
# a step of the continuation: as many positions as make 64 MB of logits in float32
_LOGITS, _LONGEST_STEP = 1 << 24, 256
_LARGE_VOCABULARY = 1 << 18  # of models whose config does not say


def encode(model: Model, prompt: Prompt, *, chat: bool = False) -> list[int]:
    """The prompt's token ids, as raw text or inside the model's chat template.

    Raises:
        InputError: no tokens come out, or the model has no chat template.
    """
    tokenizer = model.tokenizer
    text, add_special = prompt.text, True
    if chat:
        if not tokenizer.has_chat_template:
            raise InputError(f"{model.id} has no chat template", "leave out --chat")
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        add_special = False
    elif tokenizer.bos_token and text.startswith(tokenizer.bos_token):
        add_special = False
    tokens = list(tokenizer.encode(text, add_special_tokens=add_special))
    if not tokens:
        raise InputError("the prompt has no tokens", "give a longer text")
    return tokens


def cut(model: Model, tokens: list[int], max_prompt_tokens: int | None) -> list[int]:
    """The first ``max_prompt_tokens`` tokens, or all.

    Raises:
        UsageError: ``max_prompt_tokens`` < 1.
        InputError: more tokens are left than the model's context holds.
    """
    if max_prompt_tokens is not None:
        if max_prompt_tokens < 1:
            raise UsageError(f"{max_prompt_tokens} prompt tokens leave nothing", "give 1 or more")
        tokens = tokens[:max_prompt_tokens]
    if model.context is not None and len(tokens) > model.context:
        raise InputError(
            f"the prompt has {counted(len(tokens), 'token')} and the context of {model.id} is "
            f"{model.context:,}",
            f"cut it with --max-prompt-tokens {model.context}",
        )
    return tokens


def prefill(
    model: Model,
    tokens: list[int],
    progress: Progress = no_progress,
    max_kv_size: int | None = None,
) -> list[Any]:
    """Run the model over the tokens; the filled mlx-lm prompt cache, in the model's own classes.

    Args:
        max_kv_size: tokens that a rotating cache holds, for models that leave that to mlx-lm.

    Raises:
        ModelError: the model fails on this device.
    """
    from mlx_lm.generate import generate_step
    from mlx_lm.models.cache import make_prompt_cache

    cache: list[Any] = make_prompt_cache(model.network, max_kv_size)
    steps = generate_step(
        mx.array(tokens),
        model.network,
        max_tokens=0,
        prompt_cache=cache,
        prefill_step_size=_CPU_PREFILL_STEP if on_cpu() else _PREFILL_STEP,
        prompt_progress_callback=lambda done, of: progress("prefill", done, of),
    )
    try:
        for _ in steps:
            pass
    except (RuntimeError, ValueError, TypeError) as error:
        raise ModelError(
            f"{model.id} failed while reading the prompt: {one_line(error)}",
            "CACHEGEN_DEBUG=1 shows where; a shorter prompt needs less memory",
        ) from error
    return cache


def read_on(model: Model, cache: list[Any], tokens: Sequence[int]) -> Iterator[mx.array]:
    """Logits [step, vocabulary] of the tokens read after what the cache holds, which grows.

    Row i of all steps together is the prediction after token i. Steps are the same in
    every call for a model and length, and hold at most 2^24 logits.

    Raises:
        ModelError: the model fails on this device.
    """
    vocabulary = number_in(model.config, ("vocab_size",)) or _LARGE_VOCABULARY
    step = max(1, min(_LOGITS // vocabulary, _LONGEST_STEP))
    for start in range(0, len(tokens), step):
        try:
            logits = model.network(mx.array([list(tokens[start : start + step])]), cache=cache)[0]
            mx.eval(logits)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ModelError(
                f"{model.id} failed while reading the continuation: {one_line(error)}",
                "CACHEGEN_DEBUG=1 shows where; a shorter text needs less memory",
            ) from error
        yield logits
