"""How often a tensor's codes occur, and what groups of its channels take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cachegen_cli.entropy import channel_histograms, information, row_information
from cachegen_cli.results.detail import Detail

_GROUPS = 32  # of channels, at most
_COUNTS = 512  # of codes, at most


def detail_of(planes: Sequence[npt.NDArray[Any]], widths: Sequence[int]) -> Detail | None:
    """The detail of a tensor's codes; None where it has none.

    Args:
        planes: each kind of codes, [H, D, T].
        widths: of each kind; 0 where codes may have any size.
    """
    if not planes[0].size:
        return None
    counted = [_counted(codes, width) for codes, width in zip(planes, widths, strict=True)]
    bits = np.sum([plane.bits for plane in counted], axis=0)
    channels, tokens = len(bits), planes[0].shape[2]
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


def _counted(codes: npt.NDArray[Any], width: int) -> _Counted:
    if width:
        found = channel_histograms(codes, width).raw
        by_channel = found.reshape(-1, found.shape[-1])
        pooled = by_channel.sum(axis=0, dtype=np.int64)
        used = np.flatnonzero(pooled)
        counts = pooled[used[0] : used[-1] + 1]
        bits = information(by_channel, np.array(codes.shape[2]))
        return _Counted(bits, int(used[0]), 1, tuple(counts.tolist()))
    low, high = int(codes.min()), int(codes.max())
    step = -(-(high - low + 1) // _COUNTS)
    counts = np.bincount((codes.ravel().astype(np.int64) - low) // step)
    bits = row_information(codes.reshape(-1, codes.shape[2]))
    return _Counted(bits, low, step, tuple(counts.tolist()))
