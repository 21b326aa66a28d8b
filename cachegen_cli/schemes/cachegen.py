"""cachegen: the codec that CacheGen's authors and LMCache ship.

One scale a token over the channels of all heads, symmetric, with the number of bins by
layer (LMCache's ``torch_quant_vectorized`` and ``CacheGenConfig``). With m the token's
largest magnitude and C = bins // 2 - 1::

    code = round_half_even(x * (C / m) + C),    x' = (code - C) / C * m
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cachegen_cli.device import mx
from cachegen_cli.dtypes import clipped
from cachegen_cli.entropy import channel_histograms
from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.profiles import Profile
from cachegen_cli.results.spans import Entry
from cachegen_cli.rows import Rows
from cachegen_cli.schemes.base import (
    Arrays,
    ByToken,
    Coded,
    Codes,
    Place,
    Plane,
    Shared,
    channel_major,
    sixteen_bit,
    token_major,
)

Frequencies = npt.NDArray[np.int64]

CHUNK_TOKENS = 256  # LMCache's chunk_size
_STREAM_TOKENS = 256  # tokens a stream of the shipped coder
_END_BITS = 1.04  # that it takes beyond a stream's information, in the mean
_MOST_BINS, _FEWEST_BINS = 256, 4
_SMALL = 2.0**-64
_FINE, _COARSE = 32, 16  # bins
_FINE_LAYERS = {"keys": 10, "values": 2}  # shallow layers with fine bins


@dataclass(frozen=True)
class CacheGen(ByToken):
    """``bins`` for the tensor; ``chunk`` tokens an object in the shipped layout."""

    name: ClassVar[str] = "cachegen"
    summary: ClassVar[str] = "the codec of CacheGen's authors and LMCache: one scale a token"
    has_bits: ClassVar[bool] = False
    undoes_rope: ClassVar[bool] = False
    profile_use: ClassVar[str] = "may"
    bins: int
    chunk: int = CHUNK_TOKENS
    table_bins: int = _FINE  # the most bins of any layer, on which the shipped tables depend
    profile: str = ""  # SHA-256 of the profile whose symbol tables it uses
    expected: Frequencies | None = field(default=None, compare=False, repr=False)

    @classmethod
    def at(cls, place: Place, options: dict[str, Any], group_size: int) -> CacheGen:
        """The scheme for a tensor, by LMCache's schedule of bins unless ``bins`` is given."""
        fine = place.layers < 10 or place.layer < _FINE_LAYERS[place.tensor]
        bins = options.get("bins", _FINE if fine else _COARSE)
        if not _FEWEST_BINS <= bins <= _MOST_BINS:
            raise UsageError(
                f"{bins} bins do not work", f"cachegen:bins=N takes {_FEWEST_BINS} to {_MOST_BINS}"
            )
        chunk = options.get("chunk", CHUNK_TOKENS)
        if chunk < 1:
            raise UsageError(f"chunks of {chunk} tokens do not work", "give 1 or more")
        found = cls(bins, chunk, options.get("bins", _FINE))
        return (
            found.bound(place.profile, place.tensor, place.entries)
            if place.entries and place.profile
            else found
        )

    def bound(self, profile: Profile, tensor: str, entries: tuple[Entry, ...]) -> CacheGen:
        """The scheme with the symbol tables of a profile (the paper's offline profile)."""
        symbols = profile.symbols(entries[0], tensor, self.bins)
        return replace(self, profile=profile.info.sha256, expected=symbols)

    @property
    def centre(self) -> int:
        """The code of 0; codes run from 0 to twice that."""
        return self.bins // 2 - 1

    @property
    def plane_bits(self) -> tuple[int, ...]:
        """One plane, wide enough for the largest code."""
        return ((2 * self.centre).bit_length(),)

    def code(self, x: mx.array, rows: Rows, shared: Shared) -> Coded:
        """Quantize [H, T, D]; a token of zeros has the middle code everywhere."""
        largest = mx.abs(x).max(axis=(0, 2))  # [T], in x's dtype
        wide, scaled = largest.astype(mx.float32)[None, :, None], x.astype(mx.float32)
        if x.dtype == mx.bfloat16:  # of whose largest the reciprocal may be infinite or 0
            unit = mx.where(wide < _SMALL, 1 / _SMALL, mx.where(wide > 1 / _SMALL, _SMALL, 1.0))
            wide, scaled = wide * unit, scaled * unit  # exact
        factor = mx.where(wide > 0, self.centre / wide, 0.0)
        codes = mx.round(scaled * factor + self.centre)
        return Coded(
            [Plane(channel_major(codes), self.plane_bits[0])],
            Arrays([largest]),
            self._values(codes, largest),
        )

    def shipped_bytes(self, codes: Codes) -> int:
        """What the shipped layout takes for codes [C, T], without the pickle around it.

        For each object of ``chunk`` tokens: a table of table_bins + 1 16-bit entries and for
        every 256 tokens a 4-byte length a channel, 2 bytes a token for its largest value, and
        the streams, each as long as its information and about one bit, padded to a byte.
        """
        channels, tokens = codes.shape
        total = 0
        for start in range(0, tokens, self.chunk):
            part = codes[:, start : start + self.chunk]
            tables = 2 * channels * (self.table_bins + 1)
            total += tables + 2 * part.shape[1] + self._stream_bytes(part)
        return total

    def _stream_bytes(self, codes: Codes) -> int:
        """Lengths and streams of an object, whose tables are shared by its 256-token parts."""
        tokens = codes.shape[1]
        counts = channel_histograms(codes[None], self.plane_bits[0]).raw[0].astype(np.int64)
        counts = counts[:, : self.table_bins]  # [C, symbols]
        scale = 65535 - self.table_bins
        below = np.cumsum(counts, axis=1)
        share = scale * below // tokens - scale * (below - counts) // tokens + 1
        total = 0
        for start in range(0, tokens, _STREAM_TOKENS):
            part = codes[None, :, start : start + _STREAM_TOKENS]
            found = channel_histograms(part, self.plane_bits[0]).raw[0][:, : self.table_bins]
            bits = (found * (16 - np.log2(share))).sum(axis=1)
            total += int((4 + np.ceil((bits + _END_BITS) / 8)).sum())
        return total

    def restore(
        self, planes: list[Codes], parameters: bytes, wide: bool, dtype: mx.Dtype, rows: Rows
    ) -> mx.array:
        """[H, T, D] in ``dtype``."""
        tokens = planes[0].shape[2]
        if len(parameters) != 2 * tokens:
            raise InputError("its parameters are cut", "the file is damaged")
        largest = sixteen_bit(parameters, (tokens,), dtype)
        return self._values(token_major(planes[0]), largest)

    def _values(self, codes: mx.array, largest: mx.array) -> mx.array:
        wide = largest.astype(mx.float32)[None, :, None]
        return clipped((codes - self.centre) / self.centre * wide, largest.dtype)
