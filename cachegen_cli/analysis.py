"""From a model and a prompt to results: capture once, measure under any settings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import log
from typing import Any

from cachegen_cli.captures import Capture, capture, tool_versions
from cachegen_cli.device import mx
from cachegen_cli.errors import UsageError
from cachegen_cli.headers import PredictedHeader
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.model import Model
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.prompt import Prompt
from cachegen_cli.quantize import check_bits, check_group_size, layer_group_bits
from cachegen_cli.results import (
    Analysis,
    LayerResult,
    Measurement,
    Notice,
    Run,
    Settings,
    Sweep,
)
from cachegen_cli.tensors import Tensor

SCHEDULES = ("uniform", "depth")
DELTAS = ("auto", "on", "off")
TOKENS_PER_SYMBOL = 16  # fewer, and free tables flatter by more than 0.05 bits an element


def analyze(
    source: Capture | str | Model | None = None,
    prompt: str | Prompt | None = None,
    *,
    bits: int = 4,
    key_bits: int | None = None,
    value_bits: int | None = None,
    group_size: int = 32,
    schedule: str = "uniform",
    delta: str = "auto",
    pooled: bool = False,
    keep_first: int = 0,
    keep_last: int = 0,
    progress: Progress = no_progress,
    **capture_options: Any,
) -> Analysis:
    """Measure one setting on a model's KV cache.

    Args:
        source: a `Capture` to use again, or the model that `capture` takes.
        prompt: the prompt that `capture` takes.
        bits: code width of keys and values; ``key_bits`` and ``value_bits`` override it.
        group_size: tokens a group.
        schedule: "uniform", or "depth" for fewer bits in deeper layers (`layer_group_bits`).
        delta: token deltas "on", "off", or "auto" for the smaller of the two in each tensor.
        pooled: one distribution a head instead of one a channel, in the entropy estimate.
        keep_first, keep_last: tokens to leave in 16 bits; groups lie between them.
        progress: called with (stage, done, of).
        capture_options: further arguments of `capture`.

    Raises:
        CachegenError: settings, model or prompt that cannot be used.
    """
    settings = Settings(
        key_bits=bits if key_bits is None else key_bits,
        value_bits=bits if value_bits is None else value_bits,
        group_size=group_size,
        schedule=schedule,
        delta=delta,
        pooled=pooled,
        keep_first=keep_first,
        keep_last=keep_last,
    )
    check(settings)
    measured_cache = captured(source, prompt, progress, capture_options)
    started = time.perf_counter()
    measured = measure(measured_cache, settings, progress)
    return Analysis(run_of(measured_cache, started, [settings], measured=[measured]), measured)


def sweep(
    source: Capture | str | Model | None = None,
    prompt: str | Prompt | None = None,
    *,
    bits: Sequence[int] = (2, 3, 4, 8),
    group_sizes: Sequence[int] = (32,),
    schedule: str = "uniform",
    delta: str = "auto",
    pooled: bool = False,
    keep_first: int = 0,
    keep_last: int = 0,
    progress: Progress = no_progress,
    **capture_options: Any,
) -> Sweep:
    """Measure every width with every group size on the KV cache of one prefill.

    Args and errors as in `analyze`; rows run through ``bits`` for each group size in turn.
    """
    grid = [
        Settings(width, width, group_size, schedule, delta, pooled, keep_first, keep_last)
        for group_size in dict.fromkeys(group_sizes)
        for width in dict.fromkeys(bits)
    ]
    if not grid:
        raise UsageError("nothing to sweep", "give at least one width and one group size")
    for settings in grid:
        check(settings)
    measured_cache = captured(source, prompt, progress, capture_options)
    started = time.perf_counter()
    rows = tuple(measure(measured_cache, settings, progress) for settings in grid)
    return Sweep(run_of(measured_cache, started, grid, measured=rows), rows)


def check(settings: Settings) -> None:
    """Raise UsageError unless the settings can be measured."""
    check_bits(settings.key_bits)
    check_bits(settings.value_bits)
    check_group_size(settings.group_size)
    for kept in (settings.keep_first, settings.keep_last):
        if kept < 0:
            raise UsageError(f"{kept} tokens cannot be kept", "0 or more tokens stay in 16 bits")
    for name, value, choices in (
        ("schedule", settings.schedule, SCHEDULES),
        ("delta", settings.delta, DELTAS),
    ):
        if value not in choices:
            raise UsageError(f"'{value}' is not a {name}", f"choose from {', '.join(choices)}")


def measure(source: Capture, settings: Settings, progress: Progress = no_progress) -> Measurement:
    """Quantize every layer and predict its bytes; one evaluation and host read a layer."""
    layers = source.layers
    key_bits, value_bits = widths(settings, len(layers))
    results, header = [], PredictedHeader()
    for done, kv in enumerate(layers):
        progress("analyze", done, len(layers))
        tensors = quantized(kv, key_bits[done], value_bits[done], settings)
        keys, values = (tensor.result() for tensor in tensors)
        found = LayerResult(kv.layer, kv.cache, kv.keys.shape[1], kv.tokens_seen, keys, values)
        header.add(kv, tensors, found)
        results.append(found)
    progress("analyze", len(layers), len(layers))
    container = header.container_bytes(settings, source.metadata, source.tokens)
    return Measurement(settings, tuple(results), container)


def widths(settings: Settings, n_layers: int) -> tuple[list[int], list[int]]:
    """Code widths of each layer's keys and of its values under the schedule."""
    if settings.schedule == "depth":
        keys, values = (
            layer_group_bits(n_layers, bits) for bits in (settings.key_bits, settings.value_bits)
        )
        return keys, values
    return [settings.key_bits] * n_layers, [settings.value_bits] * n_layers


def quantized(kv: LayerKV, key_bits: int, value_bits: int, settings: Settings) -> list[Tensor]:
    """A layer's keys and values under a setting, evaluated together."""
    tensors = [
        Tensor(f"layer {kv.layer}'s {name} tensor", x, bits, settings)
        for name, x, bits in (("key", kv.keys, key_bits), ("value", kv.values, value_bits))
    ]
    mx.eval([tensor.arrays for tensor in tensors])
    return tensors


def captured(
    source: Capture | str | Model | None,
    prompt: str | Prompt | None,
    progress: Progress,
    options: dict[str, Any],
) -> Capture:
    """The capture that is given, or one made now."""
    if not isinstance(source, Capture):
        return capture(source, prompt, progress=progress, **options)
    if prompt is not None or options:
        raise UsageError("a capture has its prompt already", "leave out prompt and its options")
    return source


def run_of(
    source: Capture,
    started: float,
    grid: Sequence[Settings],
    times: dict[str, float] | None = None,
    measured: Sequence[Measurement] = (),
) -> Run:
    """What to say of a run that began to analyze at ``started``."""
    timing = source.timing | {"analysis_seconds": time.perf_counter() - started} | (times or {})
    return Run(
        tool=tool_versions(),
        model=source.model,
        prompt=source.prompt,
        skipped=source.skipped,
        warnings=(
            *source.notices,
            *_short_prompt_notice(source.layers, grid),
            *_tables_notice(source.prompt.tokens, measured),
        ),
        timing={name: round(seconds, 6) for name, seconds in timing.items()},
    )


def _short_prompt_notice(layers: Sequence[LayerKV], grid: Sequence[Settings]) -> list[Notice]:
    """Say by how much the plug-in entropy is too low where few tokens meet many symbols.

    Its bias is (symbols - 1) / (2 ln 2 n) bits for a distribution of n (Miller and Madow, 1955).
    """
    tokens = min(kv.keys.shape[1] for kv in layers)
    worst = 0.0
    for settings in grid:
        bits = max(settings.key_bits, settings.value_bits)
        symbols = 2 ** (bits + 1) - 1 if settings.delta == "on" else 2**bits
        n = tokens * (min(kv.keys.shape[2] for kv in layers) if settings.pooled else 1)
        if n < TOKENS_PER_SYMBOL * symbols:
            worst = max(worst, min((symbols - 1) / (2 * log(2) * n), bits))
    if not worst:
        return []
    widest = max(max(settings.key_bits, settings.value_bits) for settings in grid)
    return [
        Notice(
            "short-prompt",
            f"{tokens} tokens are few for {widest} bits: with free probability tables the entropy "
            f"is too low by up to {worst:.2f} bits an element, so its saving flatters",
        )
    ]


def _tables_notice(tokens: int, measured: Sequence[Measurement]) -> list[Notice]:
    """Say where most tensors are packed plainly only because the prompt is short."""
    notices = []
    for one in measured:
        waiting = sorted(t.tokens_to_pay for t in one.tensors if t.tokens_to_pay is not None)
        if 2 * len(waiting) > len(one.tensors):
            settings = one.settings
            notices.append(
                Notice(
                    "tables-do-not-pay",
                    f"{tokens} tokens are too few for probability tables at K{settings.key_bits} "
                    f"V{settings.value_bits}: {len(waiting)} of {len(one.tensors)} tensors are "
                    f"packed plainly; from about {waiting[len(waiting) // 2]} tokens on tables "
                    "would pay (an estimate)",
                )
            )
    return notices
