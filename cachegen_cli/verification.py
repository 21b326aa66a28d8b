"""Every layer encoded and decoded for real, and whether that pays."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.analysis import captured, run_of
from cachegen_cli.captures import Capture
from cachegen_cli.coding.sections import Section
from cachegen_cli.device import mx
from cachegen_cli.errors import InputError
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.measuring import stepped
from cachegen_cli.model import Model
from cachegen_cli.parallel import CODERS, CORES, ahead
from cachegen_cli.planes import STAGES
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.prompt import Prompt
from cachegen_cli.quantizing import quantized
from cachegen_cli.results.files import LayerCheck, Verification
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.sizes import TensorResult
from cachegen_cli.schedules import check
from cachegen_cli.tensors import Tensor
from cachegen_cli.units import units
from cachegen_cli.unpacking import decoded_planes

SLACK_BYTES = 24  # 12 for each of a plane's two range-coded streams
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
    check(settings, shipped=False)
    capture = next(captured(source, prompt, progress, capture_options, grid=[settings]))
    settings = stepped(settings, capture)
    names = (*STAGES, "encode", "decode")
    seconds = {f"{name}_seconds": 0.0 for name in names}
    started = time.perf_counter()
    checks, raw, fixed, done, n_layers = [], 0, 0, 0, len(capture.layers)
    for batch in _batches(units(capture.layers, settings, capture.fingerprint), CORES):
        progress("verify", done, n_layers)
        by_unit = []
        for kv in batch:
            both = quantized(kv, done, n_layers, settings, capture.context, restored=True)
            by_unit.append((kv, both, list(ahead((each.result for each in both), CORES))))
            done += len(kv.layers)
        tensors = [tensor for _, both, _ in by_unit for tensor in both]
        trips = _round_trips(tensors, seconds)
        for tensor in tensors:
            for stage, took in tensor.seconds.items():
                seconds[f"{stage}_seconds"] += took
        for kv, both, sizes in by_unit:
            raw += sum(size.raw_bytes for size in sizes)
            fixed += sum(size.fixed_bytes for size in sizes)
            checks.append(_check(kv, both, sizes, [trips[tensor.name] for tensor in both]))
    return Verification(
        run=run_of(capture, started, [settings], seconds),
        settings=settings.over(capture.stored),
        raw_bytes=raw,
        fixed_bytes=fixed,
        checks=tuple(checks),
    )


def _batches(items: Iterable[LayerKV], size: int) -> Iterator[list[LayerKV]]:
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch


def _check(
    kv: LayerKV,
    tensors: list[Tensor],
    sizes: list[TensorResult],
    trips: list[tuple[int, str]],
) -> LayerCheck:
    predicted = sum(size.coded_bytes or 0 for size in sizes)
    length = sum(size for size, _ in trips)
    failure = "; ".join(reason for _, reason in trips if reason)
    planes = sum(len(tensor.planes) for tensor in tensors if tensor.dim)
    if not length <= predicted <= SLACK * length + SLACK_BYTES * planes:
        failure = failure or f"predicted {predicted} bytes, wrote {length}"
    models = " ".join(str(size.symbol_model) for size in sizes if size.elements)
    return LayerCheck(kv.layer, kv.cache, models, predicted, length, failure, kv.layers)


def _round_trips(tensors: list[Tensor], seconds: dict[str, float]) -> dict[str, tuple[int, str]]:
    """By name (bytes of the section, what did not come back or ""). All are encoded, then all
    decoded, on all cores, so that the two can be timed.
    """
    coded = [tensor for tensor in tensors if tensor.dim]
    started = time.perf_counter()
    written = list(ahead((partial(_encoded, tensor) for tensor in coded), CODERS))
    encoded = time.perf_counter()
    jobs = (partial(_decoded, *both) for both in zip(coded, written, strict=True))
    read = list(ahead(jobs, CODERS))
    seconds["encode_seconds"] += encoded - started
    seconds["decode_seconds"] += time.perf_counter() - encoded
    nothing = {tensor.name: (0, "") for tensor in tensors if not tensor.dim}
    return nothing | {
        tensor.name: (len(data), _difference(tensor, found))
        for tensor, data, found in zip(coded, written, read, strict=True)
    }


def _encoded(tensor: Tensor) -> bytes:
    return tensor.section().to_bytes()


_Read = tuple[Section, list[npt.NDArray[Any]]] | InputError


def _decoded(tensor: Tensor, data: bytes) -> _Read:
    try:
        section = Section.from_bytes(data)
        shape = tensor.planes[0].codes.shape
        return section, decoded_planes(section, tensor.scheme, shape, tensor.rows)
    except InputError as error:
        return error


def _difference(tensor: Tensor, found: _Read) -> str:
    """What did not come back, or ""."""
    if isinstance(found, InputError):
        return f"{tensor.name}: {found.message}"
    section, planes = found
    for back, plane in zip(planes, tensor.planes, strict=True):
        if not np.array_equal(back, plane.codes):
            return f"{tensor.name}: other codes came back"
    if tensor.middle is not None:
        dtype = tensor.kept.dtype
        values = tensor.scheme.restore(planes, section.parameters, section.wide, dtype, tensor.rows)
        if lost := mx.logical_not(mx.isfinite(values)).sum().item():
            return f"{tensor.name}: {lost} numbers came back that are not finite"
        if not mx.array_equal(values, tensor.middle):
            return f"{tensor.name}: other values came back"
    return ""
