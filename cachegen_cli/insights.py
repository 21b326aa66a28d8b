"""What CacheGen's paper observed, on the user's model and prompt, beside null controls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.analysis import Source, captured, run_of
from cachegen_cli.captures import Capture
from cachegen_cli.device import mx
from cachegen_cli.errors import UsageError
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.locality import (
    autocorrelation,
    consecutive_design,
    layer_entropies,
    paper_design,
    raw_design,
    shuffled,
    variance_ratios,
)
from cachegen_cli.model import Model
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.prompt import LONG_SAMPLE, read_prompt
from cachegen_cli.results import insights as names
from cachegen_cli.results.insights import Finding, Insights
from cachegen_cli.results.run import Run
from cachegen_cli.rows import no_rows
from cachegen_cli.schemes import Place
from cachegen_cli.schemes.cachegen import CacheGen
from cachegen_cli.sensitivities import sensitivity
from cachegen_cli.texts import SAMPLE_CONTEXT, Texts

LAGS = (1, 2, 3, 5, 9, 10, 20, 50, 100)
_SEED = 0
_SYMBOLS = 31  # of the shipped codec's finest bins


def insights(
    source: Source = None,
    prompt: Texts = None,
    *,
    with_sensitivity: bool = True,
    continuation: int | None = None,
    progress: Progress = no_progress,
    **capture_options: Any,
) -> Insights:
    """Measure the paper's observations; every figure is a mean over layers and texts.

    Args:
        source, prompt, continuation, capture_options: as in `analyze` with quality.
        with_sensitivity: also read the continuation 2 x layers + 1 times; without it there is none.
        progress: called with (stage, done, of).

    Raises:
        CachegenError: model or texts that cannot be used, or a continuation that nothing reads.
    """
    if not with_sensitivity:
        if continuation:
            raise UsageError(
                "a continuation is read for the sensitivity alone", "leave it out, or measure that"
            )
        continuation = 0
        if prompt is None and (source is None or isinstance(source, str | Model)):
            prompt = read_prompt(None, LONG_SAMPLE)  # as much of it as beside a continuation
            if capture_options.get("max_prompt_tokens") is None:
                capture_options["max_prompt_tokens"] = SAMPLE_CONTEXT
    texts = list(captured(source, prompt, progress, capture_options, continuation))
    found = [*_locality(texts, progress), *_grouping(texts)]
    if with_sensitivity:
        measured = sensitivity(texts, progress=progress)
        run = measured.run
        found += [
            Finding(names.DEPTH, "both", measured.depth_correlation, paper="negative"),
            Finding(names.NEEDED, "both", measured.depth_correlation_needed),
        ]
    else:
        run = Run.over([run_of(text, 0.0, []) for text in texts])
        timing = {k: v for k, v in run.timing.items() if k != "analysis_seconds"}
        run = replace(run, timing=timing)
    return Insights(run, tuple(found))


def _locality(texts: Sequence[Capture], progress: Progress) -> list[Finding]:
    """Variance ratios, autocorrelations, and what three designs take at equal error."""
    figures: dict[tuple[str, str], list[float | None]] = {}
    nulls: dict[tuple[str, str], list[float | None]] = {}
    total = sum(len(text.layers) for text in texts)
    done = 0
    for text in texts:
        for place, kv in enumerate(text.layers):
            progress("insights", done, total)
            done += 1
            for name, x in _values(kv):
                for target, values in ((figures, x), (nulls, shuffled(x, _SEED))):
                    for observation, value in _of_tensor(values):
                        target.setdefault((observation, name), []).append(value)
                third = 3 * place // len(text.layers)
                for observation, value in _designs(x, third):
                    figures.setdefault((observation, name), []).append(value)
    paper = {names.CONSECUTIVE: "2.4-2.9"}
    return [
        Finding(key[0], key[1], _mean(figures[key]), _mean(nulls.get(key, [])),
                paper.get(key[0], ""))
        for key in sorted(figures, key=lambda key: names.TENSORS.index(key[1]))
    ]  # fmt: skip


def _of_tensor(x: npt.NDArray[np.float32]) -> Iterable[tuple[str, float | None]]:
    ratios, _ = variance_ratios(x)
    yield names.CONSECUTIVE, ratios.consecutive
    yield names.ANCHOR, ratios.anchor
    for lag, rho in autocorrelation(x, LAGS).items():
        yield f"autocorrelation at lag {lag}", rho


def _designs(x: npt.NDArray[np.float32], third: int) -> Iterable[tuple[str, float | None]]:
    paper = paper_design(x, third)
    yield names.ANCHORS, paper.corrected
    if not paper.relative_error > 0:
        return
    yield names.RAW, raw_design(x, paper.relative_error).corrected
    yield names.DPCM, consecutive_design(x, paper.relative_error).corrected


def _grouping(texts: Sequence[Capture]) -> list[Finding]:
    """Entropies of the shipped codec's codes by grouping; layers with the most tokens."""
    sums: list[dict[str, tuple[float, float | None]]] = []
    for text in texts:
        tokens = max(kv.keys.shape[1] for kv in text.layers)
        codes = [
            found
            for place, kv in enumerate(text.layers)
            if kv.keys.shape[1] == tokens
            for found in _codes(kv, place, len(text.layers))
        ]
        real = layer_entropies(codes, _SYMBOLS)
        # by layer both leave what they count as it is, so there is no control
        channels, times = (
            layer_entropies([shuffled(c, _SEED, axis) for c in codes], _SYMBOLS) for axis in (0, 1)
        )
        sums.append(
            {
                names.POOLED: (real.pooled.corrected, None),
                names.BY_TOKEN: (real.by_token.corrected, times.by_token.corrected),
                names.BY_LAYER: (real.by_layer.corrected, None),
                names.BY_CHANNEL: (real.by_channel.corrected, channels.by_channel.corrected),
                names.IN_OBJECTS: (real.in_objects, channels.in_objects),
                names.SHIPPED: (real.shipped_tables, None),
                names.MDL: (real.mdl_tables, None),
            }
        )
    return [
        Finding(name, "both", _mean([one[name][0] for one in sums]),
                _mean([one[name][1] for one in sums]))
        for name in sums[0]
    ]  # fmt: skip


def _codes(kv: LayerKV, place: int, layers: int) -> list[npt.NDArray[np.uint8]]:
    """Codes [channels, tokens] of keys and of values under the shipped codec."""
    found = []
    for name, x in (("keys", kv.keys), ("values", kv.values)):
        scheme = CacheGen.at(Place(name, place, layers, 0, ""), {}, 0)
        codes = scheme.code(x, no_rows(x.shape[1]), {}).planes[0].codes
        mx.eval(codes)
        found.append(np.asarray(codes).reshape(-1, x.shape[1]))
    return found


def _values(kv: LayerKV) -> list[tuple[str, npt.NDArray[np.float32]]]:
    """Keys and values [tokens, channels], heads merged."""
    both = (("keys", kv.keys), ("values", kv.values))
    return [
        (name, np.array(x.astype(mx.float32).swapaxes(0, 1)).reshape(x.shape[1], -1))
        for name, x in both
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
