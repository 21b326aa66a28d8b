"""One tensor on its way from values to bytes: kept tokens, codes, parameters, symbol models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.adaptive import Adaptive
from cachegen_cli.coding.sections import SECTION_BYTES, Section
from cachegen_cli.coding.streams import HEADER_BYTES, choose, encode, encode_wide, width_of
from cachegen_cli.details import detail_of
from cachegen_cli.device import mx
from cachegen_cli.entropy import Estimates, channel_histograms, estimates, wide_estimates
from cachegen_cli.errors import InputError
from cachegen_cli.results.detail import Detail
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.sizes import Bytes, TensorResult
from cachegen_cli.rows import Rows
from cachegen_cli.schemes import Scheme, code_shape, expected_of
from cachegen_cli.schemes.base import LARGEST_CODE, Parameters
from cachegen_cli.schemes.base import Plane as CodedPlane


class Plane(NamedTuple):
    """One kind of a tensor's codes on the host.

    Attributes:
        codes: [H, D, coded tokens] uint8, or int32 where they may have any size.
        bits: width.
        estimates: entropies by head, without parameters.
        fit: the symbol model that takes the fewest bytes.
        encoded: writes the stream.
        tokens_to_pay: where plain packing won, tokens from which tables would pay.
    """

    codes: npt.NDArray[Any]
    bits: int
    estimates: Estimates
    fit: Any
    encoded: Callable[[], bytes]
    tokens_to_pay: int | None = None


class Tensor:
    """A layer's keys or values [H, T, D] under a scheme. Evaluate `arrays` before the rest.

    What is coded starts after ``keep_first`` tokens and ends before ``keep_last``; where that
    leaves no token, there are no codes. Values come back only where ``restored`` asked for them.
    """

    def __init__(
        self,
        name: str,
        x: mx.array,
        scheme: Scheme,
        settings: Settings,
        rows: Rows,
        restored: bool = False,
    ) -> None:
        self.name, self.scheme, self.settings = name, scheme, settings
        self.heads, self.tokens, self.dim = x.shape
        first = min(settings.keep_first, self.tokens)
        last = min(settings.keep_last, self.tokens - first)
        middle = x[:, first : self.tokens - last]
        self.kept = mx.concatenate([x[:, :first], x[:, self.tokens - last :]], axis=1)
        self.first = first
        self.signal = mx.square(x.astype(mx.float32)).sum()
        self._finite = mx.isfinite(x).all()
        self.arrays: list[mx.array] = [self.kept, self.signal, self._finite]
        self.rows = rows.cut(first, last)
        self._codes: list[CodedPlane] = []
        self.parameters: Parameters | None = None  # None where no token is coded
        self.middle: mx.array | None = None
        if middle.shape[1] and self.dim:
            coded = scheme.code(middle, self.rows)
            self._codes, self.parameters = coded.planes, coded.parameters
            self._error = mx.square(coded.restored.astype(mx.float32) - middle).sum()
            self.arrays += [*coded.arrays, self._error]
            if restored:
                self.middle = coded.restored.astype(x.dtype)
                self.arrays.append(self.middle)

    @property
    def bits(self) -> int:
        """Width of an element's codes, in all planes."""
        return sum(plane.bits for plane in self.planes)

    @cached_property
    def planes(self) -> list[Plane]:
        """The codes; raises InputError where the values were not finite."""
        if not self._finite.item():
            raise InputError(
                f"{self.name} hold NaN or infinite values",
                "a model that overflows its 16-bit dtype does this; try another precision",
            )
        if self.parameters is None:
            shape = (*code_shape(self.scheme, self.heads, self.dim), 0)
            return [
                self._plane(np.zeros(shape, np.uint8 if bits else np.int32), bits)
                for bits in self.scheme.plane_bits
            ]
        return [self._plane(np.asarray(plane.codes), plane.bits) for plane in self._codes]

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
        """Every size of the tensor; with ``detail`` how often its codes occur, too."""
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
            packed += len(plane.codes) * -(-plane.codes[0].size * plane.bits // 8)
        grouping = "pooled" if self.settings.pooled else "channel"
        raw, delta = by_name[f"raw_{grouping}_bytes"], by_name[f"delta_{grouping}_bytes"]
        use_delta = delta < raw if self.settings.delta == "auto" else self.settings.delta == "on"
        fits = [plane.fit for plane in self.planes]
        shipped = getattr(self.scheme, "shipped_bytes", None)
        sizes: dict[str, Any] = by_name
        return TensorResult(
            bits=self.bits,
            delta=use_delta,
            symbol_model="+".join(fit.name for fit in fits),
            coded_delta=any(fit.delta for fit in fits),
            tokens_to_pay=self.planes[0].tokens_to_pay if len(fits) == 1 else None,
            elements=self.heads * self.tokens * self.dim,
            parameter_bytes=parameters,
            kept_bytes=kept_bytes,
            fixed_bytes=packed + beside,
            entropy_bytes=delta if use_delta else raw,
            payload_bytes=sum(fit.payload_bytes for fit in fits),
            table_bytes=sum(fit.table_bytes for fit in fits),
            header_bytes=HEADER_BYTES * len(fits) + SECTION_BYTES,
            shipped_bytes=shipped(_channels(self.planes[0].codes)) if shipped else None,
            signal_energy=float(np.asarray(self.signal)),
            detail=self._detail() if detail else None,
            error_energy=float(np.asarray(self._error)) if self.parameters else 0.0,
            **sizes,
        )

    def _detail(self) -> Detail | None:
        return detail_of([p.codes for p in self.planes], [p.bits for p in self._codes])

    def section(self) -> Section:
        """The tensor encoded, as a file holds it."""
        streams = [plane.encoded() for plane in self.planes]
        parameters, wide = self.parameters.encode() if self.parameters else (b"", False)
        patterns = np.asarray(self.kept.view(mx.uint16)) if self.kept.size else np.zeros(0)
        kept = patterns.astype("<u2").tobytes()
        return Section(b"".join(streams), parameters, kept, wide)

    def _plane(self, codes: npt.NDArray[Any], bits: int) -> Plane:
        channels, expected = _channels(codes), expected_of(self.scheme)
        if not bits:
            if codes.size and max(int(codes.max()), -int(codes.min())) >= LARGEST_CODE:
                raise InputError(
                    f"{self.name} holds values beyond 2^30 steps", "take a larger step or error"
                )
            adaptive = Adaptive(channels, self.rows.repeats, expected)
            return Plane(
                codes,
                width_of(channels),
                wide_estimates(codes),
                adaptive,
                lambda: encode_wide(channels, adaptive),
            )
        counted = channel_histograms(codes, bits)
        choice = choose(
            channels, bits, delta=self.settings.delta, counted=counted, expected=expected
        )
        return Plane(
            codes,
            bits,
            estimates(counted, 0),
            choice.fit,
            lambda: encode(channels, bits, choice=choice),
            choice.tokens_to_pay,
        )


def _nothing(bits: int) -> TensorResult:
    """The sizes of values that an entry does not have."""
    sizes: dict[str, Any] = {f.name: 0 for f in fields(Bytes)}
    return TensorResult(bits=bits, delta=False, symbol_model="", coded_delta=False, **sizes)


def _channels(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Codes [H, D, T] as [channels, T]."""
    return codes.reshape(codes.shape[0] * codes.shape[1], codes.shape[2])
