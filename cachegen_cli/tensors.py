"""One tensor on its way from values to bytes: kept tokens, codes, parameters, symbol model."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.sections import SECTION_BYTES, Section
from cachegen_cli.coding.streams import HEADER_BYTES, Choice, choose, encode
from cachegen_cli.device import mx
from cachegen_cli.entropy import (
    Estimates,
    Histograms,
    channel_histograms,
    channel_major,
    check_finite,
    estimates,
)
from cachegen_cli.quantize import (
    PARAMETER_BYTES,
    parameter_bytes,
    quantize_to_codes_batched,
    restore,
    stored_parameters,
    wide_groups,
)
from cachegen_cli.results import Settings, TensorResult


class Tensor:
    """A layer's keys or values [H, T, D] under a setting. Evaluate `arrays` before the rest.

    The groups start after ``keep_first`` tokens and end before ``keep_last``; where that
    leaves no token, there are no codes.
    """

    def __init__(self, name: str, x: mx.array, bits: int, settings: Settings) -> None:
        self.name, self.bits, self.settings = name, bits, settings
        self.heads, self.tokens, self.dim = x.shape
        first = min(settings.keep_first, self.tokens)
        last = min(settings.keep_last, self.tokens - first)
        middle = x[:, first : self.tokens - last]
        self.kept = mx.concatenate([x[:, :first], x[:, self.tokens - last :]], axis=1)
        self.first = first
        self.signal = mx.square(x.astype(mx.float32)).sum()
        self.stream = None
        self.group_size = settings.group_size
        self.arrays: list[mx.array] = [self.kept, self.signal]
        if middle.shape[1]:
            # a longer group would only be padded, at the cost of memory
            self.group_size = min(settings.group_size, middle.shape[1])
            self.stream = quantize_to_codes_batched(middle, bits, self.group_size)
            self._codes = channel_major(self.stream)
            self._wide = wide_groups(self.stream)
            self._restored = restore(self.stream)
            self._error = mx.square(self._restored - middle.astype(mx.float32)).sum()
            self.arrays += [
                self._codes, self._wide, self._error, self.stream.scale, self.stream.zero,
            ]  # fmt: skip

    @cached_property
    def codes(self) -> npt.NDArray[np.uint8]:
        """[H, D, coded tokens]; raises InputError where the values were not finite."""
        if self.stream is None:
            return np.zeros((self.heads, self.dim, 0), np.uint8)
        check_finite(self.stream, self.name)
        return np.asarray(self._codes)

    @cached_property
    def histograms(self) -> Histograms:
        """Counts of codes and deltas by channel."""
        return channel_histograms(self.codes, self.bits)

    @cached_property
    def choice(self) -> Choice:
        """The symbol model that takes the fewest bytes."""
        codes = self.codes.reshape(self.heads * self.dim, -1)
        return choose(codes, self.bits, delta=self.settings.delta, counted=self.histograms)

    @property
    def n_groups(self) -> int:
        """Groups of tokens in each head."""
        return self.stream.codes.shape[1] if self.stream is not None else 0

    def stored_parameters(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """(scale, zero), each [H, n_groups, D], as a decoder gives them back."""
        if self.stream is None:
            empty = np.zeros((self.heads, 0, self.dim), np.float32)
            return empty, empty
        scale, zero = (np.asarray(x)[:, :, 0] for x in stored_parameters(self.stream))
        return scale, zero

    def restored(self, dtype: mx.Dtype) -> mx.array:
        """[H, T, D] as a decoder gives it back."""
        parts = [self.kept[:, : self.first], self.kept[:, self.first :]]
        if self.stream is not None:
            parts.insert(1, self._restored.astype(dtype))
        return mx.concatenate(parts, axis=1)

    def result(self) -> TensorResult:
        """Every size of the tensor."""
        kept_bytes = 2 * self.kept.size
        coded = self.codes.size
        own = wide = 0
        if self.stream is not None:
            own = self.heads * parameter_bytes(self.stream)
            groups = np.asarray(self._wide).ravel()
            wide = int(groups.sum()) * self.dim * PARAMETER_BYTES
            wide += -(-groups.size // 8) if wide else 0  # the mask that says which
        head_bytes = parameter_bytes(self.stream) if self.stream is not None else 0
        found = estimates(self.histograms, head_bytes)
        beside = kept_bytes + wide
        by_name: dict[str, Any] = {
            f"{name}_bytes": sum(by_head) + beside
            for name, by_head in zip(Estimates._fields, found, strict=True)
        }
        grouping = "pooled" if self.settings.pooled else "channel"
        raw, delta = by_name[f"raw_{grouping}_bytes"], by_name[f"delta_{grouping}_bytes"]
        use_delta = delta < raw if self.settings.delta == "auto" else self.settings.delta == "on"
        fit = self.choice.fit
        packed = self.heads * -(-(coded // self.heads) * self.bits // 8)
        return TensorResult(
            bits=self.bits,
            delta=use_delta,
            symbol_model=fit.name,
            coded_delta=fit.delta,
            tokens_to_pay=self.choice.tokens_to_pay,
            elements=self.heads * self.tokens * self.dim,
            parameter_bytes=own + wide,
            kept_bytes=kept_bytes,
            fixed_bytes=packed + own + beside,
            entropy_bytes=delta if use_delta else raw,
            payload_bytes=fit.payload_bytes,
            table_bytes=fit.table_bytes,
            header_bytes=HEADER_BYTES + SECTION_BYTES,
            signal_energy=float(np.asarray(self.signal)),
            error_energy=float(np.asarray(self._error)) if self.stream is not None else 0.0,
            **by_name,
        )

    def section(self) -> Section:
        """The tensor encoded, as a file holds it."""
        codes = self.codes.reshape(self.heads * self.dim, -1)
        stream = encode(codes, self.bits, choice=self.choice)
        scale = zero = np.zeros((self.heads, 0, self.dim), np.float32)
        wide = np.zeros((self.heads, 0), bool)
        if self.stream is not None:
            scale = np.asarray(self.stream.scale)[:, :, 0]
            zero = np.asarray(self.stream.zero)[:, :, 0]
            wide = np.asarray(self._wide)[:, :, 0, 0]
        kept = np.asarray(self.kept.view(mx.uint16)) if self.kept.size else np.zeros(0, np.uint16)
        return Section.of(stream, scale, zero, wide, kept)
