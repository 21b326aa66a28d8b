"""One tensor on its way from values to bytes: kept tokens, codes, parameters, symbol models."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.sections import SECTION_BYTES, Section
from cachegen_cli.coding.streams import HEADER_BYTES, Choice, choose, encode
from cachegen_cli.device import mx
from cachegen_cli.entropy import Estimates, Histograms, channel_histograms, estimates
from cachegen_cli.errors import InputError
from cachegen_cli.results import Settings, TensorResult
from cachegen_cli.schemes import Coded, Scheme


class Plane(NamedTuple):
    """One kind of a tensor's codes on the host.

    Attributes:
        codes: [H, D, coded tokens].
        counted: counts of codes and deltas by channel.
        choice: the symbol model that takes the fewest bytes.
    """

    codes: npt.NDArray[np.uint8]
    counted: Histograms
    choice: Choice

    @property
    def rows(self) -> npt.NDArray[np.uint8]:
        """[channels, coded tokens]."""
        heads, dim, tokens = self.codes.shape
        return self.codes.reshape(heads * dim, tokens)


class Tensor:
    """A layer's keys or values [H, T, D] under a scheme. Evaluate `arrays` before the rest.

    What is coded starts after ``keep_first`` tokens and ends before ``keep_last``; where that
    leaves no token, there are no codes.
    """

    def __init__(self, name: str, x: mx.array, scheme: Scheme, settings: Settings) -> None:
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
        self.coded: Coded | None = None
        if middle.shape[1]:
            self.coded = scheme.code(middle)
            difference = self.coded.restored.astype(mx.float32) - middle
            self._error = mx.square(difference).sum()
            self.arrays += [*self.coded.arrays, self._error]

    @property
    def bits(self) -> int:
        """Width of an element's codes."""
        return sum(self.scheme.plane_bits)

    @cached_property
    def planes(self) -> list[Plane]:
        """The codes; raises InputError where the values were not finite."""
        if not self._finite.item():
            raise InputError(
                f"{self.name} holds NaN or infinite values",
                "a model that overflows its 16-bit dtype does this; try another precision",
            )
        if self.coded is None:
            empty = np.zeros((self.heads, self.dim, 0), np.uint8)
            return [self._plane(empty, bits) for bits in self.scheme.plane_bits]
        return [self._plane(np.asarray(plane.codes), plane.bits) for plane in self.coded.planes]

    def restored(self, dtype: mx.Dtype) -> mx.array:
        """[H, T, D] as a decoder gives it back."""
        parts = [self.kept[:, : self.first], self.kept[:, self.first :]]
        if self.coded is not None:
            parts.insert(1, self.coded.restored.astype(dtype))
        return mx.concatenate(parts, axis=1)

    def result(self) -> TensorResult:
        """Every size of the tensor."""
        kept_bytes = 2 * self.kept.size
        parameters = self.coded.parameters.stored_bytes if self.coded else 0
        beside = kept_bytes + parameters
        by_name = dict.fromkeys((f"{name}_bytes" for name in Estimates._fields), beside)
        packed = 0
        for plane in self.planes:
            found = estimates(plane.counted, 0)
            for name, by_head in zip(by_name, found, strict=True):
                by_name[name] += sum(by_head)
            packed += self.heads * -(-plane.codes[0].size * plane.choice.bits // 8)
        grouping = "pooled" if self.settings.pooled else "channel"
        raw, delta = by_name[f"raw_{grouping}_bytes"], by_name[f"delta_{grouping}_bytes"]
        use_delta = delta < raw if self.settings.delta == "auto" else self.settings.delta == "on"
        choices = [plane.choice for plane in self.planes]
        shipped = getattr(self.scheme, "shipped_bytes", None)
        sizes: dict[str, Any] = by_name
        return TensorResult(
            bits=self.bits,
            delta=use_delta,
            symbol_model="+".join(choice.fit.name for choice in choices),
            coded_delta=any(choice.fit.delta for choice in choices),
            tokens_to_pay=choices[0].tokens_to_pay if len(choices) == 1 else None,
            elements=self.heads * self.tokens * self.dim,
            parameter_bytes=parameters,
            kept_bytes=kept_bytes,
            fixed_bytes=packed + beside,
            entropy_bytes=delta if use_delta else raw,
            payload_bytes=sum(choice.fit.payload_bytes for choice in choices),
            table_bytes=sum(choice.fit.table_bytes for choice in choices),
            header_bytes=HEADER_BYTES * len(choices) + SECTION_BYTES,
            shipped_bytes=shipped(self.planes[0].rows) if shipped else None,
            signal_energy=float(np.asarray(self.signal)),
            error_energy=float(np.asarray(self._error)) if self.coded else 0.0,
            **sizes,
        )

    def section(self) -> Section:
        """The tensor encoded, as a file holds it."""
        streams = [
            encode(plane.rows, plane.choice.bits, choice=plane.choice) for plane in self.planes
        ]
        parameters, wide = self.coded.parameters.encode() if self.coded else (b"", False)
        patterns = np.asarray(self.kept.view(mx.uint16)) if self.kept.size else np.zeros(0)
        kept = patterns.astype("<u2").tobytes()
        return Section(b"".join(streams), parameters, kept, wide)

    def _plane(self, codes: npt.NDArray[np.uint8], bits: int) -> Plane:
        counted = channel_histograms(codes, bits)
        rows = codes.reshape(self.heads * self.dim, -1)
        return Plane(codes, counted, choose(rows, bits, delta=self.settings.delta, counted=counted))
