"""uniform: one step for a whole tensor, no clipping, and a coder that does the rest.

Keys lose their rotary position first, where that is known, so that the same token has alike
keys wherever it stands. With the mean of each channel::

    code = round((y - mean) / step),    y' = code * step + mean,    |y - y'| <= step / 2
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cachegen_cli.blockwise import float32_holds, in_float64, spans, total
from cachegen_cli.device import mx, start
from cachegen_cli.dtypes import clipped
from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.rope import Rotary
from cachegen_cli.rows import Rows
from cachegen_cli.schemes.base import (
    LARGEST_CODE,
    ByToken,
    Coded,
    Codes,
    Place,
    Plane,
    Shared,
    sixteen_bit,
)

_SMALLEST_STEP, _STEP_LIMIT = 2.0**-126, 1e30  # float32's smallest that no GPU takes for 0
_SMALLEST_GIVEN, _LARGEST_GIVEN = 1e-4, 1e6
_TARGETS = {"bits": 32.0, "kl": 100.0}  # the largest that make sense


@dataclass(frozen=True)
class Uniform(ByToken):
    """A step of ``step``, or where that is 0 one for a relative rms error of ``error``."""

    name: ClassVar[str] = "uniform"
    summary: ClassVar[str] = "one step a tensor, rotary position undone, adaptive coding"
    has_bits: ClassVar[bool] = False
    any_size: ClassVar[bool] = True
    undoes_rope: ClassVar[bool] = True
    profile_use: ClassVar[str] = "none"
    errors: ClassVar[tuple[float, float, float]] = (1e-6, 0.05, 1.0)  # least, usual, most
    step: float
    error: float
    rotary: dict[str, Any] = field(default_factory=dict)  # empty: keys stay as they are
    own: _Parameters | None = field(default=None, compare=False, repr=False)  # once it is fitted

    @classmethod
    def at(cls, place: Place, options: dict[str, Any], group_size: int) -> Uniform:
        """The scheme for a tensor."""
        least, usual, most = cls.errors
        step, error = (float(options.get(k, v)) for k, v in (("step", 0.0), ("error", usual)))
        check_target(options)
        if "step" in options and not _SMALLEST_GIVEN <= step <= _LARGEST_GIVEN:
            raise UsageError(
                f"uniform has no step of {step:g}",
                f"it is {_SMALLEST_GIVEN} to {_LARGEST_GIVEN:g}, as uniform:step=0.1",
            )
        if not least <= error <= most:
            raise UsageError(
                f"uniform has no error of {error:g}",
                f"it is {least} to {most:g}, as uniform:error=0.05",
            )
        rotary = place.rotary if place.tensor == "keys" else ""
        return cls(step, error, rotary.to_json() if isinstance(rotary, Rotary) else {})

    @property
    def plane_bits(self) -> tuple[int, ...]:
        """One plane of any width."""
        return (0,)

    def code(self, x: mx.array, rows: Rows, shared: Shared) -> Coded:
        """Quantize [H, T, D]."""
        own = self.own or self._measured(x, rows)
        codes = mx.round((self._undone(x, rows) - own.mean.astype(mx.float32)) / own.step)
        codes = mx.clip(codes, -float(LARGEST_CODE), float(LARGEST_CODE))
        wide = mx.contiguous(codes.astype(mx.int32).swapaxes(1, 2))
        return Coded([Plane(wide, 0)], own, self._values(codes, own.step, own.mean, rows))

    def fitted(self, x: mx.array, rows: Rows) -> Uniform:
        """The scheme with a tensor's step and means; InputError where there is no such step."""
        return replace(self, own=self._measured(x, rows))

    def _measured(self, x: mx.array, rows: Rows) -> _Parameters:
        added, energy = self._moments(x, rows)
        step = self.step or _rounded(np.sqrt(energy / x.size) * self.error * sqrt(12))
        if not (step < _STEP_LIMIT and np.isfinite(energy)):
            raise InputError("its values are too large for a step", "try --scheme exact")
        mean = clipped(mx.array((added / x.shape[1]).astype(np.float32)), x.dtype)
        # without a zero of negative sign, which rounded codes may have and whole numbers do not
        return _Parameters(mx.array(max(step, _SMALLEST_STEP)), mean + 0.0)

    def _moments(self, x: mx.array, rows: Rows) -> tuple[npt.NDArray[np.float64], float]:
        """Return (sums over the tokens [H, 1, D], the sum of all squares)."""
        sums, squares = list[mx.array](), list[mx.array]()
        for y in self._undone_blocks(x, rows):
            sums.append(y.sum(axis=1, keepdims=True))
            squares.append(mx.square(y).sum(axis=1))
            start([sums[-1], squares[-1]])
        mx.eval(sums, squares)
        energy = float(total(squares).sum())
        if float32_holds(energy, x.size):
            return total(sums), energy
        added, energy = np.zeros_like(total(sums)), 0.0
        for wide in map(in_float64, self._undone_blocks(x, rows)):
            energy += float(np.square(wide).sum())
            with np.errstate(invalid="ignore"):  # infinite values may have no sum
                added += wide.sum(axis=1, keepdims=True)
        return added, energy

    def restore(
        self, planes: list[Codes], parameters: bytes, wide: bool, dtype: mx.Dtype, rows: Rows
    ) -> mx.array:
        """[H, T, D] in ``dtype``."""
        heads, dim, _ = planes[0].shape
        if len(parameters) != 4 + 2 * heads * dim:
            raise InputError("its parameters are cut", "the file is damaged")
        step = float(np.frombuffer(parameters[:4], "<f4")[0])
        if not 0 < step < _STEP_LIMIT:
            raise InputError("its step is no step", "the file is damaged")
        mean = sixteen_bit(parameters[4:], (heads, 1, dim), dtype)
        codes = mx.array(planes[0]).swapaxes(1, 2).astype(mx.float32)
        return self._values(codes, mx.array(step), mean, rows)

    def _undone_blocks(self, x: mx.array, rows: Rows) -> Iterator[mx.array]:
        tokens = x.shape[1]
        for first, end in spans(x.shape):
            yield self._undone(x[:, first:end], rows.cut(first, tokens - end))

    def _undone(self, x: mx.array, rows: Rows) -> mx.array:
        if not self.rotary:
            return x.astype(mx.float32)
        return Rotary.from_json(self.rotary).undo(x, rows.positions)

    def _values(self, codes: mx.array, step: mx.array, mean: mx.array, rows: Rows) -> mx.array:
        y = codes * step + mean.astype(mx.float32)
        if self.rotary:
            y = Rotary.from_json(self.rotary).redo(y, rows.positions)
        return clipped(y, mean.dtype)


def _rounded(step: float) -> float:
    """To 12 bits, so that devices that add up a little differently find the same step."""
    mantissa, exponent = np.frexp(step)
    return float(np.ldexp(np.round(mantissa * 4096) / 4096, exponent))


def check_target(options: dict[str, Any]) -> None:
    """Raise UsageError where a target is out of any reach."""
    for key, most in _TARGETS.items():
        if key in options and not 0 < options[key] <= most:
            raise UsageError(
                f"{key}={options[key]:g} is no target", f"it is above 0 and at most {most:g}"
            )


@dataclass(frozen=True)
class _Parameters:
    """The step as float32, then the means in the dtype."""

    step: mx.array
    mean: mx.array

    @classmethod
    def joined(cls, parts: list[_Parameters]) -> _Parameters:
        """Every block has the same."""
        return parts[0]

    @cached_property
    def arrays(self) -> list[mx.array]:
        """The step, and the means' bit patterns."""
        return [self.step, self.mean.view(mx.uint16)]

    @property
    def stored_bytes(self) -> int:
        """4, and 2 a channel."""
        return 4 + 2 * self.mean.size

    def encode(self) -> tuple[bytes, bool]:
        """The step, then the means."""
        step, means = self.arrays
        return (
            np.asarray(step).astype("<f4").tobytes() + np.asarray(means).astype("<u2").tobytes(),
            False,
        )
