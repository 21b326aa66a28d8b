"""Means, covariances and symbol counts of a unit's keys and values over texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.captures import Capture
from cachegen_cli.coding.container import TENSORS
from cachegen_cli.device import mx
from cachegen_cli.entropy import channel_histograms
from cachegen_cli.errors import InputError
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.profiles import LEVELS, Unit
from cachegen_cli.results.profile import CalibratedUnit
from cachegen_cli.results.spans import Entry
from cachegen_cli.rope import Rotary
from cachegen_cli.rows import no_rows, rows_of
from cachegen_cli.schemes.cachegen import CacheGen
from cachegen_cli.weighing import Weights

_SMALLEST = 1e-12  # variance of a layer that counts
_BITS = 8  # of a symbol

Floats = npt.NDArray[np.floating[Any]]


class Learnt:
    """What is known of a unit after some texts; memory is that of two covariances."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.moments = {tensor: _Moments() for tensor in TENSORS}
        self.counts: dict[tuple[Entry, str], npt.NDArray[np.integer[Any]]] = {}

    def add(self, text: Capture) -> None:
        """Take in a text; one evaluation.

        Raises:
            InputError: its cache has other shapes.
        """
        layers = {kv.layer: kv for kv in text.layers}
        members = [layers.get(layer) for layer in self.unit.layers]
        fitting = [kv for kv in members if kv is not None and self.unit.holds(kv)]
        if len(fitting) != len(members):
            raise InputError(
                f"the cache of {text.prompt.source} has other shapes than that of the first text",
                "calibrate with texts that the model reads alike",
            )
        for tensor in TENSORS:
            moments = self.moments[tensor]
            moments.add(mx.concatenate([self._flat(kv, tensor) for kv in fitting], axis=1))
            codes = [_symbols(kv, tensor) for kv in fitting]
            mx.eval(moments.arrays, codes)
            for kv, found in zip(fitting, codes, strict=True):
                counts = channel_histograms(np.asarray(found), _BITS).raw
                counts = counts.reshape(-1, counts.shape[-1])[:, :LEVELS].astype(np.int64)
                key = (kv.layer, tensor)
                self.counts[key] = self.counts[key] + counts if key in self.counts else counts

    def solve(
        self,
        unit: Unit,
        tensor: str,
        components: int,
        weights: Weights,
        arrays: dict[str, mx.array],
    ) -> CalibratedUnit:
        """Put the basis of the unit, or of one of its layers, among the arrays.

        Args:
            components: that are kept.
            weights: how many times finer than others a layer is coded.
        """
        part = self._channels(unit, tensor)
        mean, covariance = self.moments[tensor].finish(part)
        widths = unit.widths(tensor)
        ends = np.cumsum(widths)
        variance = np.diagonal(covariance)
        by_layer = [variance[end - n : end].mean() for end, n in zip(ends, widths, strict=True)]
        finer = [weights.get((layer, tensor), 1.0) for layer in unit.layers]
        deviations = [np.sqrt(v) if v > _SMALLEST else 1.0 for v in by_layer]
        scale = np.array(deviations, np.float32) / np.array(finer, np.float32)
        spread = np.repeat(scale, widths)
        values, vectors = np.linalg.eigh(covariance / spread[:, None] / spread)
        order = np.argsort(-values, kind="stable")[:components]
        kept = np.maximum(values[order], 0)
        found = np.ascontiguousarray(vectors[:, order].T)
        # the sign of a component is arbitrary: its largest part is positive
        largest = np.abs(found).argmax(axis=1)
        found *= np.sign(found[np.arange(len(found)), largest])[:, None]
        lengths = np.abs(found).max(axis=1) / 127
        own = {
            "mean": mean,
            "scale": scale,
            "deviations": np.sqrt(kept).astype(np.float32),
            "vectors": np.rint(found / lengths[:, None]).astype(np.int8),
            "unit_lengths": lengths.astype(np.float32),
        }
        arrays |= {f"{unit.name(tensor)}.{name}": mx.array(value) for name, value in own.items()}
        energy = min(float(kept.sum() / max(values.sum(), _SMALLEST)), 1.0)
        return CalibratedUnit(unit.layers, tensor, len(mean), len(kept), energy, tuple(finer))

    def shares(self) -> Weights:
        """Standard deviation by root mean square of each layer's keys and values."""
        found = {}
        for tensor in TENSORS:
            for layer in self.unit.layers:
                part = self._channels(self.unit.only(layer), tensor)
                mean, covariance = self.moments[tensor].finish(part)
                variance = np.diagonal(covariance).mean()
                square = variance + np.square(mean).mean()
                known = variance > _SMALLEST
                found[layer, tensor] = float(np.sqrt(variance / square)) if known else 1.0
        return found

    def symbols(self) -> dict[str, mx.array]:
        """Tables of the symbols of `CacheGen` with its finest bins, as roots of frequencies."""
        return {
            f"symbols.{layer}.{tensor}": mx.array(_roots(counts))
            for (layer, tensor), counts in self.counts.items()
        }

    def _flat(self, kv: LayerKV, tensor: str) -> mx.array:
        """[tokens, channels] in float32, keys without their position."""
        x = kv.keys if tensor == "keys" else kv.values
        if tensor == "keys" and self.unit.rotary:
            x = Rotary.from_json(self.unit.rotary).undo(x, rows_of(kv, ()).positions)
        x = x.astype(mx.float32)
        return x.transpose(1, 0, 2).reshape(x.shape[1], -1)

    def _channels(self, unit: Unit, tensor: str) -> slice:
        """Where the channels of a layer are, or all of them."""
        if unit is self.unit:
            return slice(None)
        widths = self.unit.widths(tensor)
        place = self.unit.layers.index(unit.layers[0])
        start = sum(widths[:place])
        return slice(start, start + widths[place])


class _Moments:
    """Sums of x - shift and of its products, in float32; the shift is the first text's mean."""

    def __init__(self) -> None:
        self.n = 0
        self.shift: Any = None
        self.sums: Any = 0.0
        self.products: Any = 0.0

    @property
    def arrays(self) -> list[mx.array]:
        """What to evaluate."""
        return [self.shift, self.sums, self.products]

    def add(self, x: mx.array) -> None:
        """Take in rows [tokens, channels]."""
        if self.shift is None:
            self.shift = x.mean(axis=0)
        y = x - self.shift
        self.sums = self.sums + y.sum(axis=0)
        self.products = self.products + y.T @ y
        self.n += len(x)

    def finish(self, part: slice) -> tuple[Floats, Floats]:
        """(mean [C], covariance [C, C]) of some channels."""
        mean = np.asarray(self.sums[part]) / np.float32(self.n)
        covariance = np.asarray(self.products[part, part]) / np.float32(self.n)
        covariance -= np.outer(mean, mean)
        if not np.isfinite(covariance).all():
            raise InputError("the calibration texts' caches hold NaN or infinite values")
        return np.asarray(self.shift[part]) + mean, covariance


def _roots(counts: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint8]:
    """Square roots of counts [C, n] in 8 bits, at least 1 where a symbol occurs."""
    peak = np.maximum(counts.max(axis=1, keepdims=True), 1)
    found = np.rint(255 * np.sqrt(counts / peak))
    return np.where(counts > 0, np.maximum(found, 1), 0).astype(np.uint8)


def _symbols(kv: LayerKV, tensor: str) -> mx.array:
    x = kv.keys if tensor == "keys" else kv.values
    return CacheGen(LEVELS + 1).code(x, no_rows(x.shape[1]), {}).planes[0].codes
