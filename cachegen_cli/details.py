"""How often a tensor's codes occur, and what groups of its channels take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.counts import Counts
from cachegen_cli.entropy import row_information
from cachegen_cli.results.detail import Detail

_GROUPS = 32  # of channels, at most
_COUNTS = 512  # of codes, at most


def detail_of(planes: Sequence[Counts | npt.NDArray[Any]]) -> Detail | None:
    """The detail of a tensor's codes; None where it has none.

    Args:
        planes: counts of each kind of codes; the codes [H, D, T] where they may have any size.
    """
    first_plane = planes[0]
    tokens = first_plane.tokens if isinstance(first_plane, Counts) else first_plane.shape[2]
    if not tokens:
        return None
    counted = [_counted(plane) if isinstance(plane, Counts) else _wide(plane) for plane in planes]
    bits = np.sum([plane.bits for plane in counted], axis=0)
    channels = len(bits)
    size = -(-channels // _GROUPS)
    groups = [float(bits[at : at + size].mean()) / tokens for at in range(0, channels, size)]
    first = counted[0]
    return Detail(first.lowest, first.step, first.counts, size, tuple(round(b, 4) for b in groups))


class _Counted(NamedTuple):
    """Ideal bits of each channel [H * D], and how often codes occur in all of them."""

    bits: npt.NDArray[np.float64]
    lowest: int
    step: int
    counts: tuple[int, ...]


def _counted(plane: Counts) -> _Counted:
    pooled = plane.histograms.raw_pooled.sum(axis=0)
    used = np.flatnonzero(pooled)
    counts = pooled[used[0] : used[-1] + 1]
    bits = plane.histograms.raw_bits.ravel()
    return _Counted(bits, int(used[0]), 1, tuple(counts.tolist()))


def _wide(codes: npt.NDArray[np.signedinteger[Any]]) -> _Counted:
    low, high = int(codes.min()), int(codes.max())
    step = -(-(high - low + 1) // _COUNTS)
    bins = (high - low) // step + 1
    counts = np.zeros(bins, np.int64)
    for head in codes:
        counts += np.bincount((head.ravel().astype(np.int64) - low) // step, minlength=bins)
    bits = row_information(codes.reshape(-1, codes.shape[2]))
    return _Counted(bits, low, step, tuple(counts.tolist()))
