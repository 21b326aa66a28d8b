"""One text under one setting: its sizes, what a decoder gives back, and its quality."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from cachegen_cli.captures import Capture
from cachegen_cli.coding.container import TENSORS
from cachegen_cli.device import on_cpu
from cachegen_cli.errors import UsageError
from cachegen_cli.headers import PredictedHeader
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.notices import check_applies
from cachegen_cli.parallel import CORES, ahead
from cachegen_cli.planes import STAGES
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.quality import Positions, Reference
from cachegen_cli.quantizing import restored_layers, tensors
from cachegen_cli.results.measurements import Measurement, over_texts
from cachegen_cli.results.run import PromptInfo
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.sizes import LayerResult, TensorResult
from cachegen_cli.results.spans import shifted
from cachegen_cli.schemes import SCHEMES
from cachegen_cli.sharding import whole
from cachegen_cli.stepping import by_bits, by_kl, is_open
from cachegen_cli.tensors import Tensor
from cachegen_cli.units import units


def stepped(settings: Settings, text: Capture, reference: Reference | None = None) -> Settings:
    """The settings with the error that meets their target on this text, if they name one.

    Raises:
        UsageError: a target KL without a reference.
        InputError: a target that nothing meets, or that nothing in the cache could meet.
    """
    if not is_open(settings):
        return settings
    check_applies(text, settings.scheme_text)
    if "bits" in settings.options:
        return by_bits(
            settings, lambda tried: measure(text, tried).totals.coded_bits_per_element or 0.0
        )
    if reference is None:
        raise UsageError(
            f"{settings.scheme}:kl=X has to measure quality",
            "use quality, or add --quality; then give error",
        )

    def kl_at(tried: Settings) -> float:
        quality = measure_text(text, tried, reference).sizes.quality
        return quality.kl_nats if quality else 0.0

    return by_kl(settings, kl_at)


_GPU_WORKERS = 2  # threads that choose symbol models, which take longer than a GPU's part


class Measured(NamedTuple):
    """A text under a setting; positions only where quality was measured.

    ``seconds`` are those of each kind of work, which partly go on beside each other.
    """

    sizes: Measurement
    positions: Positions | None
    seconds: dict[str, float]


def measure_texts(
    text: Capture,
    grid: Sequence[Settings],
    reference: Reference | None,
    progress: Progress = no_progress,
    detail: bool = False,
) -> list[Measured]:
    """A text under every setting of one scheme; against its reference its quality, too.

    Without a reference every layer is read once, for all settings. With one, each setting's
    layers are restored in turn, since a cache for each would have to be held.
    """
    if reference is None:
        return [
            Measured(part.sizes, None, part.seconds)
            for part in _whole(text, measure_parts(text, grid, progress, detail=detail))
        ]
    found = []
    for done, settings in enumerate(grid):
        progress("quality", done, len(grid))
        found.append(measure_text(text, settings, reference, detail=detail))
    return found


def measure_text(
    text: Capture, settings: Settings, reference: Reference, detail: bool = False
) -> Measured:
    """A text's sizes and, against its reference, its quality, from one quantization."""
    restored: list[LayerKV] = []
    [part] = _whole(text, measure_parts(text, [settings], restored=restored, detail=detail))
    positions = reference.compare(restored)
    return Measured(replace(part.sizes, quality=positions.quality()), positions, part.seconds)


def pooled_over(texts: Sequence[Measured], prompts: Sequence[PromptInfo]) -> Measurement:
    """One setting over all texts: sizes are sums, quality is that of all positions."""
    quality = positions_over(texts).quality() if texts[0].positions else None
    return over_texts([text.sizes for text in texts], prompts, quality)


def positions_over(texts: Sequence[Measured]) -> Positions:
    """Return the positions of all texts whose quality was measured."""
    return Positions.of([text.positions for text in texts if text.positions])


def measure(
    source: Capture,
    settings: Settings,
    progress: Progress = no_progress,
    restored: list[LayerKV] | None = None,
    detail: bool = False,
) -> Measurement:
    """One setting's sizes, over all processes that hold parts of the model."""
    [part] = _whole(source, measure_parts(source, [settings], progress, restored, detail))
    return part.sizes


class Part(NamedTuple):
    """What one process measured of a text under a setting."""

    sizes: Measurement
    header: PredictedHeader
    seconds: dict[str, float]


def _whole(text: Capture, parts: list[Part]) -> list[Part]:
    if not text.sharded:
        return parts
    return [part._replace(sizes=whole(text, part.sizes, part.header)) for part in parts]


def measure_parts(
    source: Capture,
    grid: Sequence[Settings],
    progress: Progress = no_progress,
    restored: list[LayerKV] | None = None,
    detail: bool = False,
) -> list[Part]:
    """Quantize every layer under every setting of one scheme and predict its bytes.

    While codes are counted, those of the next tensor are made.

    Args:
        restored: takes every layer as a decoder would give it back; of one setting.
        detail: how often codes occur and what groups of channels take, too.
    """
    headers = [PredictedHeader() for _ in grid]
    layers: list[list[LayerResult]] = [[] for _ in grid]
    seconds = [dict.fromkeys(STAGES, 0.0) for _ in grid]
    kv_bits = source.kv_bits
    waiting: dict[int, list[_Tensor]] = {}
    # the adaptive model takes far longer than MLX does, and goes to processes
    slow = SCHEMES[grid[0].scheme].any_size
    workers = CORES if slow else 1 if on_cpu() else min(CORES, _GPU_WORKERS)
    for kv, place, found in ahead(_jobs(source, grid, progress, restored, detail), workers):
        both = waiting.setdefault(place, [])
        both.append(found)
        for stage, took in found.seconds.items():
            seconds[place][stage] += took
        if len(both) < 2:
            continue
        keys, values = waiting.pop(place)
        shown = replace(kv, layer=shifted(kv.layer, source.first_layer))
        layer = LayerResult(
            shown.layer, kv.cache, kv.keys.shape[1], kv.tokens_seen, keys.sizes, values.sizes,
            shown.layers, kv.role, kv.stored.text if kv.stored else "", kv.allocated,
            kv_bits.get(kv.layer, ""),
        )  # fmt: skip
        headers[place].add(shown, (keys.described, values.described), layer)
        layers[place].append(layer)
    progress("analyze", len(source.layers), len(source.layers))
    return [
        Part(
            Measurement(
                settings.over(source.stored),
                tuple(layers[place]),
                header.container_bytes(settings, source.metadata, source.tokens),
            ),
            header,
            seconds[place],
        )
        for place, (settings, header) in enumerate(zip(grid, headers, strict=True))
    ]


class _Tensor(NamedTuple):
    """What is left of a tensor once it is measured."""

    sizes: TensorResult
    described: dict[str, Any]
    seconds: dict[str, float]


_Job = Callable[[], tuple[LayerKV, int, _Tensor]]


def _jobs(
    source: Capture,
    grid: Sequence[Settings],
    progress: Progress,
    restored: list[LayerKV] | None,
    detail: bool,
) -> Iterator[_Job]:
    """What is left to do for each tensor under each setting, once MLX has done its part."""
    begun: deque[tuple[LayerKV, int, Tensor]] = deque()
    before = 0 if on_cpu() else 1  # a GPU is given the next tensor before it is waited for
    for each in _begun(source, grid, progress, restored):
        begun.append(each)
        del each
        if len(begun) > before:
            yield _job(*begun.popleft(), detail)
    for each in begun:
        yield _job(*each, detail)


def _begun(
    source: Capture,
    grid: Sequence[Settings],
    progress: Progress,
    restored: list[LayerKV] | None,
) -> Iterator[tuple[LayerKV, int, Tensor]]:
    """Each unit's tensors under each setting, by number, with MLX at work on them."""
    n_layers, n_entries, done = len(source.layers), source.n_entries, 0  # ranks are asked once
    for kv in units(source.layers, grid[0], source.fingerprint):
        progress("analyze", done, n_layers)
        place = (source.first_layer + done, n_entries)
        back = []
        for name in TENSORS:
            both = kv, name, *place, grid, source.context, restored is not None, False
            for number, tensor in enumerate(tensors(*both)):
                if restored is not None:
                    back.append(tensor.restored())
                yield kv, number, tensor
        done += len(kv.layers)
        if restored is not None:
            restored += restored_layers(kv, *back)


def _job(kv: LayerKV, number: int, tensor: Tensor, detail: bool) -> _Job:
    return partial(_finished, kv, number, tensor.settle(), detail)


def _finished(
    kv: LayerKV, number: int, tensor: Tensor, detail: bool
) -> tuple[LayerKV, int, _Tensor]:
    sizes = tensor.result(detail)
    return kv, number, _Tensor(sizes, tensor.described(), tensor.seconds)
