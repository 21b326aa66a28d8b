"""Every layer encoded and decoded for real, and whether that pays."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from cachegen_cli.analysis import captured, run_of
from cachegen_cli.captures import Capture
from cachegen_cli.coding.sections import Section
from cachegen_cli.device import mx
from cachegen_cli.errors import InputError
from cachegen_cli.measuring import quantized, stepped
from cachegen_cli.model import Model
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.prompt import Prompt
from cachegen_cli.results.files import LayerCheck, Verification
from cachegen_cli.results.settings import Settings
from cachegen_cli.schedules import check
from cachegen_cli.tensors import Tensor
from cachegen_cli.units import units
from cachegen_cli.unpacking import decoded_planes

SLACK_BYTES = 16  # 8 for each of a plane's two range-coded streams
SLACK = 1.001


def verify(
    source: Capture | str | Model | None = None,
    prompt: str | Prompt | None = None,
    settings: Settings | None = None,
    *,
    progress: Progress = no_progress,
    **capture_options: Any,
) -> Verification:
    """Encode and decode every layer; compare codes, and predicted with actual bytes.

    Args:
        source, prompt, capture_options: as in `analyze`.
        settings: how to quantize; 4 bits in groups of 32 by default.
        progress: called with (stage, done, of).

    Raises:
        CachegenError: settings, model or prompt that cannot be used.
    """
    settings = settings or Settings()
    check(settings)
    capture = next(captured(source, prompt, progress, capture_options, grid=[settings]))
    settings = stepped(settings, capture)
    seconds = {"encode_seconds": 0.0, "decode_seconds": 0.0}
    started = time.perf_counter()
    checks, raw, fixed, done = [], 0, 0, 0
    for kv in units(capture.layers, settings, capture.fingerprint):
        progress("verify", done, len(capture.layers))
        tensors = quantized(kv, done, len(capture.layers), settings, capture.context, restored=True)
        sizes = [tensor.result() for tensor in tensors]
        raw += sum(size.raw_bytes for size in sizes)
        fixed += sum(size.fixed_bytes for size in sizes)
        predicted = sum(size.coded_bytes or 0 for size in sizes)
        found = [_round_trip(tensor, seconds) for tensor in tensors if tensor.dim]
        length = sum(size for size, _ in found)
        failure = "; ".join(reason for _, reason in found if reason)
        planes = sum(len(tensor.planes) for tensor in tensors if tensor.dim)
        if not length <= predicted <= SLACK * length + SLACK_BYTES * planes:
            failure = failure or f"predicted {predicted} bytes, wrote {length}"
        models = " ".join(str(size.symbol_model) for size in sizes if size.elements)
        checks.append(LayerCheck(kv.layer, kv.cache, models, predicted, length, failure, kv.layers))
        done += len(kv.layers)
    return Verification(
        run=run_of(capture, started, [settings], seconds),
        settings=settings,
        raw_bytes=raw,
        fixed_bytes=fixed,
        checks=tuple(checks),
    )


def _round_trip(tensor: Tensor, seconds: dict[str, float]) -> tuple[int, str]:
    """(bytes of the section, what did not come back or "")."""
    planes = tensor.planes
    started = time.perf_counter()
    data = tensor.section().to_bytes()
    encoded = time.perf_counter()
    try:
        section = Section.from_bytes(data)
        back = decoded_planes(section, tensor.scheme, planes[0].codes.shape, tensor.rows)
    except InputError as error:
        return len(data), f"{tensor.name}: {error.message}"
    seconds["encode_seconds"] += encoded - started
    seconds["decode_seconds"] += time.perf_counter() - encoded
    for found, plane in zip(back, planes, strict=True):
        if not np.array_equal(found, plane.codes):
            return len(data), f"{tensor.name}: other codes came back"
    if tensor.middle is not None:
        dtype = tensor.kept.dtype
        values = tensor.scheme.restore(back, section.parameters, section.wide, dtype, tensor.rows)
        if not mx.array_equal(values, tensor.middle):
            return len(data), f"{tensor.name}: other values came back"
    return len(data), ""
