"""From calibration texts to a profile: bases, step weights and symbol tables."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cachegen_cli.analysis import run_of
from cachegen_cli.captures import Capture, capture_texts
from cachegen_cli.coding.container import TENSORS
from cachegen_cli.device import mx
from cachegen_cli.documents import Documents
from cachegen_cli.errors import UsageError
from cachegen_cli.model import Model, load_model
from cachegen_cli.moments import Learnt
from cachegen_cli.profilefiles import save_profile
from cachegen_cli.profiles import Profile, Unit
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.results.profile import CalibratedUnit, Calibration
from cachegen_cli.results.run import Run
from cachegen_cli.rope import Rotary
from cachegen_cli.texts import Texts, texts_of
from cachegen_cli.weighing import Weights, sensitivities, step_weights

CHANNELS = 6144  # of a basis at most; its decomposition takes the cube of that
COMPONENTS = 3072  # of a basis, that a profile holds
WEIGHED = 4  # texts
_MODEL_OPTIONS = ("adapter_path", "revision", "trust_remote_code")


def calibrate(
    source: str | Model | None = None,
    prompt: Texts = None,
    path: Path | str = "profile.safetensors",
    *,
    channels: int = CHANNELS,
    components: int = COMPONENTS,
    weigh: int = WEIGHED,
    progress: Progress = no_progress,
    **capture_options: Any,
) -> Calibration:
    """Learn a model's bases, step weights and symbol tables from texts; write them as a profile.

    Args:
        source: as ``model`` of `capture_texts`.
        prompt, capture_options: as in `capture_texts`; every text is read whole.
        path: the file to write; an existing one is replaced.
        channels: of a basis at most; wider models are split into groups of layers.
        components: of a basis, that the profile holds.
        weigh: texts, evenly spread among all, on which every layer's share in the KL is measured;
            0 to code all layers alike.
        progress: called with (stage, done, of).

    Raises:
        UsageError: sizes that make no sense.
        InputError: texts whose caches differ in shape, or that are too short.
        CachegenError: as in `capture_texts`, and a file that cannot be written.
    """
    if channels < 1 or components < 1 or weigh < 0:
        raise UsageError("a basis has a channel and a component at least", "give more")
    prompts = texts_of(prompt)
    model = source
    if not isinstance(model, Model):
        given = {key: capture_options.pop(key) for key in _MODEL_OPTIONS if key in capture_options}
        model = load_model(model, **given, progress=progress)
    kl: Weights = {}
    if weigh:
        chosen = prompts[:: -(-len(prompts) // weigh)]
        kl = sensitivities(
            capture_texts(
                model, chosen, continuation=None, progress=progress, **capture_options
            ),
            progress,
        )  # fmt: skip
    learnt: list[Learnt] = []
    runs: list[Run] = []
    texts: list[tuple[str, Sequence[int]]] = []
    for text in capture_texts(model, prompts, progress=progress, **capture_options):
        started = time.perf_counter()
        if not learnt:
            learnt = [Learnt(unit) for unit in units_of(text, channels)]
        for one in learnt:
            one.add(text)
        texts.append((text.prompt.source, text.tokens))
        runs.append(run_of(text, started, []))
    run = Run.over(runs)
    started = time.perf_counter()
    profile, rows = _solved(learnt, kl, components, progress, Path(path), model, texts)
    seconds = {"calibration_seconds": round(time.perf_counter() - started, 6)}
    return Calibration(run.with_timing(seconds), profile.info, rows)


def _solved(
    learnt: Sequence[Learnt],
    kl: Weights,
    components: int,
    progress: Progress,
    path: Path,
    model: Model,
    texts: Sequence[tuple[str, Sequence[int]]],
) -> tuple[Profile, tuple[CalibratedUnit, ...]]:
    """Bases of all units, across layers and by layer, written to a file."""
    arrays: dict[str, mx.array] = {}
    across: list[Unit] = []
    alone: list[Unit] = []
    rows: list[CalibratedUnit] = []
    shares = {key: share for one in learnt for key, share in one.shares().items()}
    weights = step_weights(kl, shares)
    for done, one in enumerate(learnt):
        progress("calibrate", done, len(learnt))
        parts = [one.unit.only(layer) for layer in one.unit.layers]
        across.append(one.unit)
        alone += parts
        for unit in dict.fromkeys((one.unit, *parts)):
            rows += [one.solve(unit, tensor, components, weights, arrays) for tensor in TENSORS]
        arrays |= one.symbols()
    progress("calibrate", len(learnt), len(learnt))
    rows.sort(key=lambda row: (-len(row.layers), row.layers, row.tensor))
    profile = save_profile(
        path,
        arrays,
        model=model.id,
        fingerprint=model.fingerprint,
        units={"model": tuple(across), "layer": tuple(alone)},
        documents=Documents.of(texts),
        tokens=sum(len(tokens) for _, tokens in texts),
    )
    return profile, tuple(rows)


def units_of(text: Capture, channels: int) -> list[Unit]:
    """Which entries of a model share a basis: those that are alike in length, shape and rotation.

    Args:
        channels: of one basis, at most.
    """
    alike: dict[tuple[Any, ...], list[Any]] = {}
    for kv in text.layers:
        found = text.rotaries[kv.layer]
        rotary = found.to_json() if isinstance(found, Rotary) else {}
        dims = (kv.keys.shape[2], kv.values.shape[2])
        key = (dims, kv.window, kv.sinks, json.dumps(rotary), kv.keys.dtype)
        alike.setdefault(key, []).append(kv)
    units = []
    for (dims, window, sinks, rotary, _), layers in alike.items():
        total = sum(kv.keys.shape[0] for kv in layers) * max(dims)
        parts = min(-(-total // channels), len(layers))
        for part in np.array_split(np.arange(len(layers)), parts):
            members = [layers[i] for i in part]
            units.append(
                Unit(
                    tuple(kv.layer for kv in members),
                    tuple(kv.keys.shape[0] for kv in members),
                    dims, window, sinks, json.loads(rotary),
                )
            )  # fmt: skip
    return units
