"""transform: one step in a basis that was calibrated for the model.

Principal components over the channels of all heads, and of all layers that share a basis
(the idea of KVTC, arXiv 2511.01815, with an arithmetic coder in the place of DEFLATE). Keys
lose their rotary position first; each layer is scaled to unit variance. With V the
components' vectors and one step for all, which is what reverse water-filling comes to::

    code = round(((x - mean) / scale) V^T / step),    x' = (code * step) V * scale + mean

Components whose standard deviation is below `DROPPED` steps are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.learning import scales_of
from cachegen_cli.device import mx
from cachegen_cli.dtypes import clipped
from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.profiles import BASES, Basis, Profile
from cachegen_cli.results.spans import Entry
from cachegen_cli.rows import Rows
from cachegen_cli.schemes.base import (
    LARGEST_CODE,
    Arrays,
    ByToken,
    Coded,
    Codes,
    Place,
    Plane,
    Shared,
)
from cachegen_cli.schemes.uniform import check_target

DROPPED = 1.0  # theory says 0.29; at equal KL, less of the small components is better
_EXPECTED = 0.75  # mean magnitude by standard deviation, of what is between Gauss and Laplace


@dataclass(frozen=True)
class Transform(ByToken):
    """A step of ``step`` standard deviations of a layer.

    Attributes:
        basis: "layer" or "model".
        components: how many are coded.
        profile: SHA-256 of the profile that holds the basis.
        found: the basis.
    """

    name: ClassVar[str] = "transform"
    summary: ClassVar[str] = "one step in a calibrated basis across layers"
    has_bits: ClassVar[bool] = False
    any_size: ClassVar[bool] = True
    undoes_rope: ClassVar[bool] = True
    profile_use: ClassVar[str] = "must"
    errors: ClassVar[tuple[float, float, float]] = (1e-4, 0.1, 2.0)  # least, usual, most
    step: float
    basis: str
    components: int
    profile: str
    found: Basis | None = field(default=None, compare=False, repr=False)

    @classmethod
    def at(cls, place: Place, options: dict[str, Any], group_size: int) -> Transform:
        """The scheme for a unit's keys or values."""
        basis = str(options.get("basis", "model"))
        if basis not in BASES:
            raise UsageError(f"transform has no basis '{basis}'", f"choose from {', '.join(BASES)}")
        step = step_of(options)
        if place.profile is None:
            raise UsageError(
                "transform needs a profile of the model",
                "make one with 'cachegen calibrate' and give --profile FILE",
            )
        digest = place.profile.info.sha256
        if not place.entries:  # only the options are checked
            return cls(step, basis, 1, digest)
        found = place.profile.basis(basis, place.entries, place.tensor)
        components = max(int((found.deviations > DROPPED * step).sum()), 1)
        return cls(step, basis, components, digest, found)

    def bound(self, profile: Profile, tensor: str, entries: tuple[Entry, ...]) -> Transform:
        """The scheme with its basis out of a profile."""
        found = profile.basis(self.basis, entries, tensor)
        if self.components > found.deviations.size:
            raise InputError("it has more components than its profile", "the file is damaged")
        return replace(self, found=found)

    @property
    def tokens_together(self) -> int:
        """All: a product of matrices is rounded otherwise when it is of fewer rows."""
        return 0

    @property
    def plane_bits(self) -> tuple[int, ...]:
        """One plane of any width."""
        return (0,)

    @property
    def expected(self) -> npt.NDArray[np.int64]:
        """Magnitudes of the components' codes, as the coder counts them."""
        deviations = self._known.deviations[: self.components]
        return scales_of(_EXPECTED * deviations / self.step)

    @property
    def _known(self) -> Basis:
        if self.found is None:
            raise InputError("its basis is in a profile", "give --profile FILE")
        return self.found

    def code(self, x: mx.array, rows: Rows, shared: Shared) -> Coded:
        """Quantize [H, T, D]."""
        known = self._known
        y = known.rotary.undo(x, rows.positions) if known.rotary else x.astype(mx.float32)
        heads, tokens, dim = y.shape
        flat = y.transpose(1, 0, 2).reshape(tokens, heads * dim)
        vectors = known.leading(self.components)
        codes = mx.round(((flat - known.mean) / known.scale) @ vectors.T / self.step)
        codes = mx.clip(codes, -float(LARGEST_CODE), float(LARGEST_CODE))
        wide = mx.contiguous(codes.astype(mx.int32).T[None])
        return Coded([Plane(wide, 0)], Arrays([]), self._values(codes, rows, x.dtype))

    def restore(
        self, planes: list[Codes], parameters: bytes, wide: bool, dtype: mx.Dtype, rows: Rows
    ) -> mx.array:
        """[H, T, D] in ``dtype``."""
        if parameters:
            raise InputError("it has parameters", "the file is damaged")
        codes = mx.contiguous(mx.array(planes[0][0]).T).astype(mx.float32)
        return self._values(codes, rows, dtype)

    def _values(self, codes: mx.array, rows: Rows, dtype: mx.Dtype) -> mx.array:
        """[H, T, D] from codes [T, components]."""
        known = self._known
        flat = (codes * self.step) @ known.leading(self.components) * known.scale + known.mean
        heads = sum(known.unit.heads)
        y = flat.reshape(len(flat), heads, -1).transpose(1, 0, 2)
        return clipped(known.rotary.redo(y, rows.positions) if known.rotary else y, dtype)


def step_of(options: dict[str, Any]) -> float:
    """The step that options give, in standard deviations of a layer.

    Raises:
        UsageError: one that makes no sense.
    """
    least, usual, most = Transform.errors
    check_target(options)
    given = float(options["step"]) / sqrt(12) if "step" in options else None
    error = float(options.get("error", usual)) if given is None else given
    if not least <= error <= most:
        raise UsageError(
            f"transform has no {'step' if 'step' in options else 'error'} of "
            f"{options.get('step', error):g}",
            f"an error is {least} to {most:g}, as transform:error=0.1; a step is 3.46 times that",
        )
    return float(np.float32(error * sqrt(12)))
