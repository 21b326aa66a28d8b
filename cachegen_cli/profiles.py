"""A profile: what was learnt once of a model's keys and values, from calibration texts.

Bases for `transform`, symbol tables for `cachegen`, and fingerprints of the texts, in one
.safetensors file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.container import TENSORS
from cachegen_cli.device import mx
from cachegen_cli.documents import Documents
from cachegen_cli.errors import InputError
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.results.profile import ProfileInfo
from cachegen_cli.results.spans import Entry
from cachegen_cli.rope import Rotary

BASES = ("layer", "model")
LEVELS = 255  # symbols of the stored tables, of 256 bins
_FLOOR = 4096  # a symbol has at least one part in so many of its table

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Unit:
    """Cache entries that share a basis, and how their keys were rotated.

    Attributes:
        layers: cache entries, in the order in which they are joined.
        heads: of each.
        dims: head_dim of keys and of values.
        window, sinks: as in `LayerKV`.
        rotary: of keys; empty where they are not rotated or it is not known how.
    """

    layers: tuple[Entry, ...]
    heads: tuple[int, ...]
    dims: tuple[int, int]
    window: int
    sinks: int
    rotary: dict[str, Any]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Unit:
        """The inverse of `dataclasses.asdict`, after JSON made lists of tuples."""
        lists = {name: tuple(map(int, data[name])) for name in ("heads", "dims")}
        return cls(**data | lists | {"layers": tuple(data["layers"])})

    def name(self, tensor: str) -> str:
        """Of its arrays in the file."""
        return f"{tensor}.{self.layers[0]}+{len(self.layers)}"

    def widths(self, tensor: str) -> list[int]:
        """Channels of each layer's heads."""
        return [heads * self.dims[TENSORS.index(tensor)] for heads in self.heads]

    def only(self, layer: Entry) -> Unit:
        """A unit of one of its layers."""
        heads = self.heads[self.layers.index(layer)]
        return replace(self, layers=(layer,), heads=(heads,)) if len(self.layers) > 1 else self

    def holds(self, kv: LayerKV) -> bool:
        """Whether an entry is of this unit and shaped as it was when it was calibrated."""
        if kv.layer not in self.layers:
            return False
        heads = self.heads[self.layers.index(kv.layer)]
        return (heads, *self.dims, self.window, self.sinks) == (
            kv.keys.shape[0], kv.keys.shape[2], kv.values.shape[2], kv.window, kv.sinks,
        )  # fmt: skip


@dataclass(frozen=True)
class Basis:
    """Orthogonal components of a unit's keys or values, the largest first.

    A token's channels x [C] have the components ((x - mean) / scale) @ vectors.T.

    Attributes:
        unit: what it is of.
        tensor: "keys" or "values".
        mean, scale: [C] float32; of a channel, and of its layer.
        deviations: [R] standard deviations of the components.
        vectors: [R, C] int8, each times its ``unit_lengths``.
        unit_lengths: [R] float32.
    """

    unit: Unit
    tensor: str
    mean: mx.array
    scale: mx.array
    deviations: Floats
    vectors: mx.array
    unit_lengths: mx.array

    def leading(self, components: int) -> mx.array:
        """The first vectors [components, C] in float32."""
        return self.vectors[:components].astype(mx.float32) * self.unit_lengths[:components, None]

    @property
    def rotary(self) -> Rotary | None:
        """How its keys were rotated."""
        known = self.tensor == "keys" and self.unit.rotary
        return Rotary.from_json(self.unit.rotary) if known else None


@dataclass(frozen=True)
class Profile:
    """An opened profile; arrays are read when they are used.

    Attributes:
        info: where it is and what it was made from.
        fingerprint: of the model's weights.
        units: by basis, "layer" or "model".
        documents: the calibration texts.
    """

    info: ProfileInfo
    fingerprint: str
    units: dict[str, tuple[Unit, ...]]
    documents: Documents
    arrays: dict[str, mx.array]

    def check(self, fingerprint: str) -> None:
        """Raise InputError unless the profile is of the model with this fingerprint."""
        if fingerprint != self.fingerprint:
            raise InputError(
                f"profile '{self.info.file}' is of another model, {self.info.model}",
                "calibrate one for this model",
            )

    def unit(self, basis: str, kv: LayerKV) -> Unit:
        """The unit of an entry.

        Raises:
            InputError: there is none that it fits.
        """
        for unit in self.units[basis]:
            if unit.holds(kv):
                return unit
        raise InputError(
            f"profile '{self.info.file}' has no basis for cache entry {kv.layer}: it was made for "
            f"{self.info.model}",
            "calibrate one for this model",
        )

    def basis(self, basis: str, layers: Sequence[Entry], tensor: str) -> Basis:
        """The basis of a unit's keys or values.

        Raises:
            InputError: the profile has no such unit, or the file is damaged.
        """
        unit = next((u for u in self.units[basis] if u.layers == tuple(layers)), None)
        if unit is None:
            raise InputError(
                f"profile '{self.info.file}' has no basis for layers {list(layers)}",
                "take the profile that was used",
            )
        name, widths = unit.name(tensor), unit.widths(tensor)
        channels = sum(widths)
        try:
            parts = {part: self.arrays[f"{name}.{part}"] for part in PARTS}
            found = Basis(
                unit,
                tensor,
                parts["mean"],
                mx.array(np.repeat(np.asarray(parts["scale"]), widths)),
                np.asarray(parts["deviations"]).astype(np.float64),
                parts["vectors"],
                parts["unit_lengths"],
            )
            n = found.deviations.size
            shapes = (found.mean.shape, found.scale.shape, found.vectors.shape)
            if shapes != ((channels,), (channels,), (n, channels)) or not n:
                raise ValueError(name)
            return found
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise damaged(self.info.file, error) from error

    def symbols(self, layer: Entry, tensor: str, bins: int) -> npt.NDArray[np.int64] | None:
        """Frequencies [C, symbols] of an entry's codes under `cachegen` with so many bins.

        None where the profile has none of that entry.
        """
        stored = self.arrays.get(f"symbols.{layer}.{tensor}")
        if stored is None:
            return None
        counts = np.asarray(stored).astype(np.int64) ** 2
        centre, finest = bins // 2 - 1, LEVELS // 2
        # round half up in integers: where each level of the finest bins falls
        levels = np.arange(-finest, finest + 1)
        place = (2 * levels * centre + finest) // (2 * finest) + centre
        found = np.zeros((len(counts), 2 * centre + 1), np.int64)
        for level, symbol in enumerate(place.tolist()):
            found[:, symbol] += counts[:, level]
        return found * 16 + np.maximum(found.sum(axis=1, keepdims=True) * 16 // _FLOOR, 1)


PARTS = ("mean", "scale", "deviations", "vectors", "unit_lengths")


def damaged(path: str, error: Exception) -> InputError:
    """That a file is no profile."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return InputError(f"'{path}' cannot be read as a profile ({reason})", "calibrate it again")
