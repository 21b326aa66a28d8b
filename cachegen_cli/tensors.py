"""One tensor on its way from values to bytes: kept tokens, codes, parameters, symbol models."""

from __future__ import annotations

import math
import time
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np

from cachegen_cli.blockwise import in_float64, summed
from cachegen_cli.coding.counts import Counts
from cachegen_cli.coding.device_counts import DeviceCounts
from cachegen_cli.coding.framing import HEADER_BYTES
from cachegen_cli.coding.sections import SECTION_BYTES, Section
from cachegen_cli.details import detail_of
from cachegen_cli.device import fused, mx, on_cpu, start
from cachegen_cli.entropy import Estimates
from cachegen_cli.errors import InputError
from cachegen_cli.planes import STAGES, Plane, channels_of, narrow_plane, wide_plane
from cachegen_cli.results.detail import Detail
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.sizes import Bytes, TensorResult
from cachegen_cli.schemes import Scheme, code_shape, expected_of, to_header
from cachegen_cli.schemes.affine import StoredAffine
from cachegen_cli.schemes.base import LARGEST_CODE, Parameters, squared_error
from cachegen_cli.schemes.base import Plane as CodedPlane
from cachegen_cli.values import Values


class Tensor:
    """Values under a scheme. MLX begins its part of the work when it is made.

    Codes come back as values only where ``restored`` asked for that, and without ``codes`` they
    are not kept once they are counted on a GPU. What follows `settle` is
    numpy's work alone, which may be done in another thread.

    Attributes:
        parameters: what a decoder needs beside the codes; None where no token is coded.
        middle: [H, coded tokens, D] as a decoder gives it back, if it was asked for.
        seconds: that its making and what followed took, by kind of work.
    """

    def __init__(
        self,
        values: Values,
        scheme: Scheme,
        settings: Settings,
        restored: bool = False,
        codes: bool = True,
    ) -> None:
        started = time.perf_counter()
        self.name, self.scheme, self.settings = values.name, scheme, settings
        self.heads, self.tokens, self.dim = values.heads, values.tokens, values.dim
        self.kept, self.first, self.rows = values.kept, values.first, values.rows
        self._values, self._errors = values, list[mx.array]()
        self._keep = codes or hasattr(scheme, "shipped_bytes")
        self.parameters: Parameters | None = None
        self.middle: mx.array | None = None
        self._codes: list[CodedPlane] = []
        self._counting: list[DeviceCounts | None] = [None] * len(scheme.plane_bits)
        if values.middle.size:
            self._quantize(values, restored)
        quantized = time.perf_counter()
        if not on_cpu():
            self._counting = [DeviceCounts(*plane) if plane.bits else None for plane in self._codes]
            if not self._keep and all(self._counting):  # a GPU is done with them soon
                self._codes = [CodedPlane(None, bits) for _, bits in self._codes]
        took = quantized - started, time.perf_counter() - quantized, 0.0
        self.seconds = dict(zip(STAGES, took, strict=True))

    def _quantize(self, values: Values, restored: bool) -> None:
        try:
            scheme = self.scheme.fitted(values.middle, values.rows)
        except InputError as refused:
            values.check()  # which may know better
            raise InputError(f"{self.name}: {refused.message}", refused.hint) from refused
        planes, parameters, middles = [], [], list[mx.array]()
        for block in values.blocks(scheme.tokens_together):
            coded = scheme.code(*block)
            error = coded.error
            if error is None or restored:
                error = fused(squared_error)(coded.restored, block.x)
            if restored:
                middles.append(coded.restored)
            start([error, *coded.arrays, *middles[-1:]])
            self._errors.append(error)
            planes.append(coded.planes)
            parameters.append(coded.parameters)
        self.parameters = type(parameters[0]).joined(parameters)
        if restored:
            self.middle = mx.concatenate(middles, axis=1)
        if len(planes) == 1:  # already begun
            self._codes = planes[0]
            return
        by_plane = list(zip(*planes, strict=True))
        planes.clear()
        while by_plane:
            self._codes.append(_joined(by_plane.pop(0)))
            if self._codes[-1].bits:
                start([self._codes[-1].codes])

    def settle(self) -> Tensor:
        """Wait for MLX and take what it found to the host.

        Raises:
            InputError: the values are not finite.
        """
        started = time.perf_counter()
        self._values.check()
        wanted = self.parameters.arrays if self.parameters else []
        self._kept = self.kept.view(mx.uint16)
        mx.eval(wanted, self._errors, self.middle, self._kept, [p.codes for p in self._codes])
        self._codes = [plane if plane.bits else _on_host(plane.codes) for plane in self._codes]
        self.signal, self.error = self._values.signal, summed(self._errors)
        if self.parameters is not None and not (
            self._values.in_float32 and math.isfinite(self.error)
        ):
            self.error = self._wide_error()
        del self._values
        settled = time.perf_counter()
        self._counts = [counting.read() if counting else None for counting in self._counting]
        self._counting = []
        self.seconds["quantize"] += settled - started
        self.seconds["count"] += time.perf_counter() - settled
        return self

    def _wide_error(self) -> float:
        """The error's energy in float64, where float32 does not hold it.

        Raises:
            InputError: a decoder would give back values that are not finite.
        """
        scheme = self.scheme.fitted(self._values.middle, self._values.rows)
        energy = 0.0
        for block in self._values.blocks(scheme.tokens_together):
            restored = scheme.code(block.x, block.rows, {}).restored
            energy += float(np.square(in_float64(restored) - in_float64(block.x)).sum())
        if not math.isfinite(energy):
            raise InputError(
                f"{self.name}: {self.scheme.name} would give back numbers that are not finite",
                "values lie too far apart for its parameters; try --scheme exact",
            )
        return energy

    @property
    def bits(self) -> int:
        """Width of an element's codes, in all planes."""
        return sum(plane.bits for plane in self.planes)

    @cached_property
    def planes(self) -> list[Plane]:
        """The codes with their symbol models."""
        if self.parameters is None:
            shape = (*code_shape(self.scheme, self.heads, self.dim), 0)
            return [
                self._plane(np.zeros(shape, np.uint8 if bits else np.int32), bits, None)
                for bits in self.scheme.plane_bits
            ]
        return [
            self._plane(codes, bits, counts)
            for (codes, bits), counts in zip(self._codes, self._counts, strict=True)
        ]

    def _plane(self, codes: Any, bits: int, counts: Counts | None) -> Plane:
        expected = expected_of(self.scheme)
        if bits:
            return narrow_plane(codes, bits, counts, self.settings.delta, expected, self.seconds)
        wide = np.asarray(codes)
        if wide.size and max(int(wide.max()), -int(wide.min())) >= LARGEST_CODE:
            raise InputError(
                f"{self.name} hold values beyond 2^30 steps", "take a larger step or error"
            )
        return wide_plane(wide, self.rows.repeats, expected, self.seconds)

    def restored(self) -> mx.array:
        """[H, T, D] as a decoder gives it back.

        Raises:
            RuntimeError: they were not asked for when it was made.
        """
        if self.middle is None and self.parameters is not None:
            raise RuntimeError(f"{self.name} was quantized without its values")
        parts = [self.kept[:, : self.first], self.kept[:, self.first :]]
        if self.middle is not None:
            parts.insert(1, self.middle)
        return mx.concatenate(parts, axis=1)

    def result(self, detail: bool = False) -> TensorResult:
        """Every size of the tensor; with ``detail`` how often its codes occur, too.

        This is numpy's work, which may be done beside MLX's on other tensors.
        """
        if not self.heads * self.tokens * self.dim:
            return _nothing(self.bits)
        kept_bytes = 2 * self.kept.size
        parameters = self.parameters.stored_bytes if self.parameters else 0
        beside = kept_bytes + parameters
        by_name = dict.fromkeys((f"{name}_bytes" for name in Estimates._fields), beside)
        packed = 0
        for plane in self.planes:
            for name, by_head in zip(by_name, plane.estimates, strict=True):
                by_name[name] += sum(by_head)
            heads, dim, tokens = plane.shape
            packed += heads * -(-dim * tokens * plane.bits // 8)
        grouping = "pooled" if self.settings.pooled else "channel"
        raw, delta = by_name[f"raw_{grouping}_bytes"], by_name[f"delta_{grouping}_bytes"]
        use_delta = delta < raw if self.settings.delta == "auto" else self.settings.delta == "on"
        fits = [plane.fit for plane in self.planes]
        started = time.perf_counter()
        payload = sum(fit.payload_bytes for fit in fits)
        self.seconds["code"] += time.perf_counter() - started
        shipped = getattr(self.scheme, "shipped_bytes", None)
        sizes: dict[str, Any] = by_name
        return TensorResult(
            bits=self.bits,
            delta=use_delta,
            symbol_model="+".join(fit.name for fit in fits),
            coded_delta=any(fit.delta for fit in fits),
            tokens_to_pay=self._tokens_to_pay(),
            elements=self.heads * self.tokens * self.dim,
            parameter_bytes=parameters,
            kept_bytes=kept_bytes,
            fixed_bytes=packed + beside,
            entropy_bytes=delta if use_delta else raw,
            entropy_bias_bits=round(
                sum(plane.bias_bits(use_delta, self.settings.pooled) for plane in self.planes), 1
            ),
            payload_bytes=payload,
            table_bytes=sum(fit.table_bytes for fit in fits),
            header_bytes=HEADER_BYTES * len(fits) + SECTION_BYTES,
            shipped_bytes=shipped(channels_of(self.planes[0].codes)) if shipped else None,
            # what stored codes were before is not there: their error is not 0 but unknown
            signal_energy=0.0 if isinstance(self.scheme, StoredAffine) else self.signal,
            detail=self._detail() if detail else None,
            error_energy=self.error,
            **sizes,
        )

    def _tokens_to_pay(self) -> int | None:
        """Return from how many tokens tables would pay, as far as codes stay what they are."""
        [first, *others] = self.planes
        whole = self.scheme.tokens_together <= first.shape[2]  # a group that is not full changes
        return first.tokens_to_pay if whole and not others else None

    def _detail(self) -> Detail | None:
        return detail_of([plane.counts or plane.codes for plane in self.planes])

    def described(self) -> dict[str, Any]:
        """What a file's header says of it beside its place and sizes."""
        return {
            "dim": self.dim,
            "bits": self.bits,
            "scheme": to_header(self.scheme),
            "kept_first": self.first,
            "kept_last": self.kept.shape[1] - self.first,
        }

    def section(self) -> Section:
        """The tensor encoded, as a file holds it."""
        streams = [plane.encoded() for plane in self.planes]
        parameters, wide = self.parameters.encode() if self.parameters else (b"", False)
        kept = np.asarray(self._kept).astype("<u2").tobytes()
        return Section(b"".join(streams), parameters, kept, wide)


def _joined(blocks: tuple[CodedPlane, ...]) -> CodedPlane:
    """A tensor's codes from those of its blocks of tokens; a list of those of any size."""
    if not blocks[0].bits:
        return CodedPlane([block.codes for block in blocks], 0)
    return CodedPlane(mx.concatenate([block.codes for block in blocks], axis=2), blocks[0].bits)


def _on_host(blocks: mx.array | list[mx.array]) -> CodedPlane:
    """Codes of any size in 16 bits each, if these hold them; blocks are let go one by one."""
    blocks, found = blocks if isinstance(blocks, list) else [blocks], []
    while blocks:
        wide = np.asarray(blocks.pop(0))
        found.append(wide.astype(np.int16))
        if not np.array_equal(found[-1], wide):
            found[-1] = wide.copy()
    return CodedPlane(np.concatenate(found, axis=2), 0)


def _nothing(bits: int) -> TensorResult:
    """The sizes of values that an entry does not have."""
    sizes: dict[str, Any] = {f.name: 0 for f in fields(Bytes)}
    return TensorResult(bits=bits, delta=False, symbol_model="", coded_delta=False, **sizes)
