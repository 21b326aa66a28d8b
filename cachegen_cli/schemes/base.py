"""What a scheme is: a way to turn a tensor into codes and parameters and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cachegen_cli.device import mx
from cachegen_cli.profiles import Profile
from cachegen_cli.results.spans import Entry
from cachegen_cli.rope import Rotary
from cachegen_cli.rows import Rows

Codes = npt.NDArray[Any]


LARGEST_CODE = 1 << 30  # of codes of any size; what is beyond is held there


class Place(NamedTuple):
    """Where a tensor stands in a cache, as far as a scheme may care.

    Attributes:
        tensor: "keys" or "values".
        layer: place among the analysed entries.
        layers: how many these are.
        bits: code width under the schedule.
        dtype: "float16" or "bfloat16".
        rotary: how keys were rotated, or why that is not known.
        profile: what was calibrated for the model, if it is given.
        entries: cache entries that it holds.
    """

    tensor: str
    layer: int
    layers: int
    bits: int
    dtype: str
    rotary: Rotary | str = ""
    profile: Profile | None = None
    entries: tuple[Entry, ...] = ()


class Plane(NamedTuple):
    """Codes of one kind: [H, D, T] uint8 below 2^bits, or int32 of any size where bits is 0."""

    codes: Any  # mx.array
    bits: int


class Parameters(Protocol):
    """What a decoder needs beside the codes. Evaluate `arrays` before the rest, which is
    numpy's work: it may be another thread's.
    """

    @property
    def arrays(self) -> list[mx.array]:
        """What to evaluate."""

    @property
    def stored_bytes(self) -> int:
        """Length of `encode`'s bytes."""

    def encode(self) -> tuple[bytes, bool]:
        """(the parameters as a file holds them, whether some are wider than usual)."""

    @classmethod
    def joined(cls, parts: list[Any]) -> Parameters:
        """Those of a tensor from those of its blocks of tokens."""


@dataclass(frozen=True)
class Arrays:
    """Parameters that are arrays of 16-bit numbers, one after another, with an axis of tokens."""

    numbers: list[mx.array]
    axis: int = 0

    @classmethod
    def joined(cls, parts: list[Arrays]) -> Arrays:
        """Each array of all blocks, one behind the other."""
        axis = parts[0].axis
        arrays = zip(*(part.numbers for part in parts), strict=True)
        return cls([mx.concatenate(list(array), axis=axis) for array in arrays], axis)

    @cached_property
    def arrays(self) -> list[mx.array]:
        """The numbers' bit patterns."""
        return [x.view(mx.uint16) for x in self.numbers]

    @property
    def stored_bytes(self) -> int:
        """Two bytes a number."""
        return sum(2 * x.size for x in self.numbers)

    def encode(self) -> tuple[bytes, bool]:
        """The numbers' bit patterns."""
        return b"".join(np.asarray(x).astype("<u2").tobytes() for x in self.arrays), False


@dataclass(frozen=True)
class Coded:
    """A block of a tensor [H, T, D] under a scheme; nothing is evaluated yet.

    Attributes:
        planes: the codes; a scheme may have several kinds for each element.
        parameters: beside them.
        restored: [H, T, D] as a decoder gives it back, in the tensor's dtype.
        error: `squared_error` of that, where a scheme can say so with less memory on a GPU.
    """

    planes: list[Plane]
    parameters: Parameters
    restored: mx.array
    error: mx.array | None = None

    @property
    def arrays(self) -> list[mx.array]:
        """What to evaluate; ``restored`` is for those who want it."""
        return [*(plane.codes for plane in self.planes), *self.parameters.arrays]


Shared = dict[Any, Any]
"""What the settings of a sweep have in common for a block of tokens; a scheme fills it."""


class ByToken:
    """A scheme that codes each token without looking at others, as far as it says nothing else."""

    any_size: ClassVar[bool] = False  # whether its codes may have any, for the adaptive model

    @property
    def tokens_together(self) -> int:
        """Tokens that have to stay together in a block; 0 for all of them."""
        return 1

    def fitted(self, x: mx.array, rows: Rows) -> Any:
        """The scheme with what it takes from the whole tensor: nothing."""
        return self


class Scheme(Protocol):
    """A configured scheme: a frozen dataclass of plain numbers, which a file's header holds."""

    name: ClassVar[str]
    summary: ClassVar[str]
    has_bits: ClassVar[bool]  # whether a code width is chosen for it
    any_size: ClassVar[bool]  # whether its codes may have any, for the adaptive model
    undoes_rope: ClassVar[bool]  # whether it wants keys without their position
    profile_use: ClassVar[str]  # "none", "may" or "must"

    @classmethod
    def at(cls, place: Place, options: dict[str, Any], group_size: int) -> Scheme:
        """The scheme for a tensor.

        Args:
            options: as the user gave them, known and of the right types.
            group_size: of the settings, for schemes with groups.

        Raises:
            UsageError: options that make no sense.
        """

    @property
    def tokens_together(self) -> int:
        """Tokens that have to stay together in a block; 0 for all of them."""

    def fitted(self, x: mx.array, rows: Rows) -> Scheme:
        """The scheme with what it takes from the whole tensor [H, T, D], evaluated."""

    def code(self, x: mx.array, rows: Rows, shared: Shared) -> Coded:
        """Quantize a block [H, T, D] of a 16-bit dtype; T >= 1.

        Args:
            shared: of this block of this tensor.

        Raises:
            UsageError: a shape that the scheme cannot take.
        """

    @property
    def plane_bits(self) -> tuple[int, ...]:
        """The width of each plane, for reading a file; 0 for codes of any size."""

    def restore(
        self, planes: list[Codes], parameters: bytes, wide: bool, dtype: mx.Dtype, rows: Rows
    ) -> mx.array:
        """[H, T, D] in ``dtype`` from codes [H, D, T] and parameters.

        Raises:
            InputError: parameters that do not fit the codes.
        """


def squared_error(restored: mx.array, x: mx.array) -> mx.array:
    """Sums over the tokens of [H, T, D], [H, D]."""
    return mx.square(restored.astype(mx.float32) - x).sum(axis=1)


def code_shape(scheme: Scheme, heads: int, dim: int) -> tuple[int, int]:
    """Heads and channels of a scheme's codes."""
    components: int = getattr(scheme, "components", 0)
    return (1, components) if components else (heads, dim)


def expected_of(scheme: Scheme) -> npt.NDArray[np.int64] | None:
    """What coder and decoder know of a scheme's codes from a profile.

    Frequencies [channels, symbols], or for codes of any size scales [channels].
    """
    found: npt.NDArray[np.int64] | None = getattr(scheme, "expected", None)
    return found


def token_major(codes: Codes) -> mx.array:
    """Codes [H, D, T] as float32 [H, T, D]."""
    return mx.array(codes).swapaxes(1, 2).astype(mx.float32)


def channel_major(codes: mx.array) -> mx.array:
    """Codes [H, T, D] as uint8 [H, D, T]."""
    return mx.contiguous(codes.astype(mx.uint8).swapaxes(1, 2))


def sixteen_bit(data: bytes, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """An array of 16-bit numbers from their bit patterns."""
    return mx.array(np.frombuffer(data, "<u2").astype(np.uint16).reshape(shape)).view(dtype)
