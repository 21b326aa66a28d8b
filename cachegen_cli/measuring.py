"""One text under one setting: its sizes, what a decoder gives back, and its quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from cachegen_cli.captures import Capture
from cachegen_cli.device import mx
from cachegen_cli.errors import UsageError
from cachegen_cli.headers import PredictedHeader
from cachegen_cli.kvcache import LayerKV, split
from cachegen_cli.model import dtype_name
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.quality import Positions, Reference
from cachegen_cli.results.measurements import Measurement, over_texts
from cachegen_cli.results.run import PromptInfo
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.sizes import LayerResult
from cachegen_cli.results.spans import shifted
from cachegen_cli.rows import Context, rows_of
from cachegen_cli.schedules import widths
from cachegen_cli.schemes import SCHEMES, Place, Scheme, scheme_at
from cachegen_cli.schemes.affine import StoredAffine
from cachegen_cli.sharding import whole
from cachegen_cli.stepping import by_bits, by_kl, is_open
from cachegen_cli.tensors import Tensor
from cachegen_cli.units import profile_of, units


def stepped(settings: Settings, text: Capture, reference: Reference | None = None) -> Settings:
    """The settings with the error that meets their target on this text, if they name one.

    Raises:
        UsageError: a target KL without a reference.
        InputError: a target that nothing meets.
    """
    if not is_open(settings):
        return settings
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


class Measured(NamedTuple):
    """A text under a setting; positions only where quality was measured."""

    sizes: Measurement
    positions: Positions | None


def measure_text(
    text: Capture,
    settings: Settings,
    reference: Reference | None,
    progress: Progress = no_progress,
    detail: bool = False,
) -> Measured:
    """A text's sizes and, against its reference, its quality, from one quantization."""
    if reference is None:
        return Measured(measure(text, settings, progress, detail=detail), None)
    restored: list[LayerKV] = []
    sizes = measure(text, settings, restored=restored, detail=detail)
    positions = reference.compare(restored)
    return Measured(replace(sizes, quality=positions.quality()), positions)


def pooled_over(texts: Sequence[Measured], prompts: Sequence[PromptInfo]) -> Measurement:
    """One setting over all texts: sizes are sums, quality is that of all positions."""
    positions = [text.positions for text in texts if text.positions]
    quality = Positions.of(positions).quality() if positions else None
    return over_texts([text.sizes for text in texts], prompts, quality)


def measure(
    source: Capture,
    settings: Settings,
    progress: Progress = no_progress,
    restored: list[LayerKV] | None = None,
    detail: bool = False,
) -> Measurement:
    """As `measure_part`, over all processes that hold parts of the model."""
    found, header = measure_part(source, settings, progress, restored, detail)
    return whole(source, found, header) if source.sharded else found


def measure_part(
    source: Capture,
    settings: Settings,
    progress: Progress = no_progress,
    restored: list[LayerKV] | None = None,
    detail: bool = False,
) -> tuple[Measurement, PredictedHeader]:
    """Quantize every layer and predict its bytes; one evaluation and host read a layer.

    Args:
        restored: takes every layer as a decoder would give it back.
        detail: how often codes occur and what groups of channels take, too.
    """
    layers, n_entries = source.layers, source.n_entries  # ranks are asked once
    results, header, done = [], PredictedHeader(), 0
    for kv in units(layers, settings, source.fingerprint):
        progress("analyze", done, len(layers))
        wanted = restored is not None
        place = (source.first_layer + done, n_entries)
        found, back = _measure_layer(source, kv, place, settings, header, wanted, detail)
        results.append(found)
        done += len(kv.layers)
        if restored is not None:
            restored += back
    progress("analyze", len(layers), len(layers))
    container = header.container_bytes(settings, source.metadata, source.tokens)
    return Measurement(settings, tuple(results), container), header


def _measure_layer(
    source: Capture,
    kv: LayerKV,
    place: tuple[int, int],
    settings: Settings,
    header: PredictedHeader,
    restored: bool,
    detail: bool,
) -> tuple[LayerResult, list[LayerKV]]:
    """A unit's sizes, and its layers as a decoder gives them back; nothing else outlives it.

    Args:
        place: where it begins among the entries, and how many these are.
    """
    tensors = quantized(kv, *place, settings, source.context, restored)
    keys, values = (tensor.result(detail) for tensor in tensors)
    shown = replace(kv, layer=shifted(kv.layer, source.first_layer))
    found = LayerResult(
        shown.layer, kv.cache, kv.keys.shape[1], kv.tokens_seen, keys, values, shown.layers,
        kv.role, kv.stored.text if kv.stored else "", kv.allocated,
        source.kv_bits.get(kv.layer, ""),
    )  # fmt: skip
    header.add(shown, tensors, found)
    return found, restored_layers(kv, tensors) if restored else []


def restored_layers(kv: LayerKV, tensors: Sequence[Tensor]) -> list[LayerKV]:
    """The layers as a decoder would give them back."""
    keys, values = (tensor.restored() for tensor in tensors)
    mx.eval(keys, values)
    return split(replace(kv, keys=keys, values=values))


def quantized(
    kv: LayerKV,
    place: int,
    n_layers: int,
    settings: Settings,
    context: Context,
    restored: bool = False,
) -> list[Tensor]:
    """Keys and values of a unit that begins at a place, evaluated one after the other.

    Args:
        restored: whether what a decoder gives back is wanted.

    Raises:
        InputError, UsageError: the scheme or the plan does not fit the layer.
    """
    dtype = dtype_name(kv.keys.dtype)
    undoes = SCHEMES[settings.scheme].undoes_rope
    rotary = context.rotary(kv.layer) if undoes else ""
    rows = rows_of(kv, context.tokens if undoes else ())
    profile = profile_of(settings)
    tensors = []
    named = (("keys", kv.keys), ("values", kv.values))
    for (name, x), bits in zip(named, widths(settings, n_layers), strict=True):
        at = Place(name, place, n_layers, bits[place], dtype, rotary, profile, kv.layers)
        if kv.stored is not None:
            packed = kv.stored.keys if name == "keys" else kv.stored.values
            scheme: Scheme = StoredAffine(kv.stored.bits, kv.stored.group_size, packed)
            own = replace(settings, keep_first=0, keep_last=0)
        else:
            scheme, own = scheme_at(settings, at), settings
        tensor = Tensor(f"{kv.name}'s {name}", x, scheme, own, rows, restored)
        for array in tensor.arrays:
            mx.eval(array)  # values wait, so that what keys take meanwhile is free again
        tensors.append(tensor)
    return tensors
