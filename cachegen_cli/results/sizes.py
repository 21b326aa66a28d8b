"""Sizes of tensors and layers; totals and ratios are defined here once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar

from cachegen_cli.results.detail import Detail, pooled_detail
from cachegen_cli.results.picking import pick
from cachegen_cli.results.spans import Entry, Placed


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Sizes of a tensor or of any sum of tensors.

    Attributes:
        elements: numbers held.
        parameter_bytes: scales and zeros, 4 bytes a group and channel.
        fixed_bytes: codes packed at their width + parameters.
        kept_bytes: first and last tokens kept in 16 bits; part of every other size.
        entropy_bytes: the estimate that was chosen + parameters; no probability tables.
        entropy_bias_bits: by how much it may be too low, since its tables are free.
        payload_bytes: range-coded symbols, upper bound; None in results of earlier versions.
        table_bytes: the symbol models' tables.
        header_bytes: headers of streams and sections.
        shipped_bytes: of the scheme cachegen, what its authors' layout takes; else None.
        raw_channel_bytes: estimate of the codes, one distribution a head and channel.
        raw_pooled_bytes: estimate of the codes, one distribution a head.
        delta_channel_bytes: estimate of the token deltas by head and channel.
        delta_pooled_bytes: estimate of the token deltas by head.
        signal_energy: sum of squares of the 16-bit values.
        error_energy: sum of squares of value - dequantized value.
    """

    elements: int
    parameter_bytes: int
    fixed_bytes: int
    entropy_bytes: int
    raw_channel_bytes: int
    raw_pooled_bytes: int
    delta_channel_bytes: int
    delta_pooled_bytes: int
    signal_energy: float
    error_energy: float
    kept_bytes: int = 0
    payload_bytes: int | None = None
    table_bytes: int | None = None
    header_bytes: int | None = None
    shipped_bytes: int | None = None
    entropy_bias_bits: float | None = None

    DERIVED: ClassVar = (
        "raw_bytes",
        "entropy_bits_per_element",
        "entropy_saving",
        "coded_bytes",
        "coded_bits_per_element",
        "coded_saving",
        "relative_rms_error",
    )

    @property
    def raw_bytes(self) -> int:
        """16 bits an element."""
        return 2 * self.elements

    @property
    def entropy_bits_per_element(self) -> float | None:
        """Entropy bytes, parameters included, in bits an element; None where there are none."""
        return 8 * self.entropy_bytes / self.elements if self.elements else None

    @property
    def entropy_saving(self) -> float | None:
        """1 - entropy / fixed; None where there is nothing to save, or no more than the bias."""
        saved_bits = 8 * (self.fixed_bytes - self.entropy_bytes)
        if not self.fixed_bytes or 0 < saved_bits <= (self.entropy_bias_bits or 0):
            return None
        return 1 - self.entropy_bytes / self.fixed_bytes

    @property
    def coded_bytes(self) -> int | None:
        """Payload, tables, headers, parameters and kept tokens: what a file holds."""
        if self.payload_bytes is None or self.table_bytes is None or self.header_bytes is None:
            return None
        return (
            self.payload_bytes
            + self.table_bytes
            + self.header_bytes
            + self.parameter_bytes
            + self.kept_bytes
        )

    @property
    def coded_bits_per_element(self) -> float | None:
        """Coded bytes in bits an element; None where there are none."""
        if self.coded_bytes is None or not self.elements:
            return None
        return 8 * self.coded_bytes / self.elements

    @property
    def coded_saving(self) -> float | None:
        """1 - coded / fixed; negative where tables cost more than coding saves."""
        if self.coded_bytes is None or not self.fixed_bytes:
            return None
        return 1 - self.coded_bytes / self.fixed_bytes

    @property
    def relative_rms_error(self) -> float | None:
        """Root of error energy / signal energy; None for a tensor of zeros, which has none."""
        return sqrt(self.error_energy / self.signal_energy) if self.signal_energy else None

    def to_json(self) -> dict[str, Any]:
        """Fields and derived numbers."""
        return asdict(self) | {name: getattr(self, name) for name in self.DERIVED}


def total(parts: Iterable[Bytes]) -> Bytes:
    """The sum of some sizes, field by field."""
    parts = tuple(parts)
    sums: dict[str, Any] = {}
    for f in fields(Bytes):
        column = [getattr(part, f.name) for part in parts]
        sums[f.name] = None if None in column else sum(column)
    return Bytes(**sums)


@dataclass(frozen=True, kw_only=True)
class TensorResult(Bytes):
    """One entry's keys or values: its sizes and what was chosen for it.

    Over several texts sizes are summed, and a choice that they do not share is None.

    Attributes:
        bits: code width.
        delta: whether the estimate is of token deltas.
        symbol_model: what codes the tensor in the fewest bytes (`coding.models`).
        coded_delta: whether that codes token deltas.
        tokens_to_pay: where plain packing won, the tokens from which tables would pay, nearly
            always within a factor of 2; None where they pay already, never would, or that
            cannot be told.
        detail: histogram and bits by channel group, where they were asked for.
    """

    bits: int
    delta: bool | None
    symbol_model: str | None = None
    coded_delta: bool | None = None
    tokens_to_pay: int | None = None
    detail: Detail | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TensorResult:
        """The inverse of `to_json`."""
        return pick(cls, data | {"detail": Detail.from_json(data.get("detail"))})


@dataclass(frozen=True)
class LayerResult(Placed):
    """One cache entry, or several that are coded as one: ``tokens`` kept of ``tokens_seen``.

    Attributes:
        layer: the entry, the first of several.
        layers: all of them; empty in results of earlier versions.
        role: "kv"; "latent" of multi-head latent attention, whose values are the rotated key;
            "index" of sparse attention.
        stored: the codes that the cache holds already, if it does.
        tokens_allocated: that the cache has room for; None in results of earlier versions.
        kv_bits: what ``mlx_lm --kv-bits`` would do to it: "works", "nothing: why", "crashes: why",
            or "" where that is not known.
    """

    layer: Entry
    cache: str
    tokens: int
    tokens_seen: int
    keys: TensorResult
    values: TensorResult
    layers: tuple[Entry, ...] = ()
    role: str = "kv"
    stored: str = ""
    tokens_allocated: int | None = None
    kv_bits: str = ""

    @cached_property
    def total(self) -> Bytes:
        """Keys and values together."""
        return total((self.keys, self.values))

    def to_json(self) -> dict[str, Any]:
        """The entry with both tensors."""
        return asdict(self) | {"keys": self.keys.to_json(), "values": self.values.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LayerResult:
        """The inverse of `to_json`."""
        tensors = {name: TensorResult.from_json(data[name]) for name in ("keys", "values")}
        return pick(cls, data | tensors | {"layers": tuple(data.get("layers", ()))})


def pooled(layers: Sequence[LayerResult]) -> LayerResult:
    """The same entry over several texts."""
    first = layers[0]
    return LayerResult(
        first.layer,
        first.cache,
        sum(layer.tokens for layer in layers),
        sum(layer.tokens_seen for layer in layers),
        _pooled_tensor([layer.keys for layer in layers]),
        _pooled_tensor([layer.values for layer in layers]),
        first.layers,
        first.role,
        first.stored,
        _sum(layer.tokens_allocated for layer in layers),
        first.kv_bits,
    )


def joined_heads(parts: Sequence[LayerResult]) -> LayerResult:
    """An entry whose heads were measured apart."""
    keys, values = (
        _pooled_tensor([getattr(part, name) for part in parts]) for name in ("keys", "values")
    )
    return replace(parts[0], keys=keys, values=values)


def _sum(values: Iterable[int | None]) -> int | None:
    listed = list(values)
    return None if None in listed else sum(value or 0 for value in listed)


def _pooled_tensor(tensors: Sequence[TensorResult]) -> TensorResult:
    sums = {f.name: getattr(total(tensors), f.name) for f in fields(Bytes)}
    choices: dict[str, Any] = {}
    for f in fields(TensorResult):
        if f.name not in (*sums, "detail"):
            values = {getattr(tensor, f.name) for tensor in tensors}
            choices[f.name] = values.pop() if len(values) == 1 else None
    detail = pooled_detail([t.detail for t in tensors], [t.elements for t in tensors])
    return TensorResult(**sums, **choices, detail=detail)
