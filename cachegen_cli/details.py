"""How often a tensor's codes occur, and what groups of its channels take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    found = [_channel_bits(codes, width) for codes, width in zip(planes, widths, strict=True)]
    bits = np.sum(found, axis=0)
    channels, tokens = planes[0].shape[0] * planes[0].shape[1], planes[0].shape[2]
    size = -(-channels // _GROUPS)
    groups = [float(bits[at : at + size].mean()) / tokens for at in range(0, channels, size)]
    low, high = int(planes[0].min()), int(planes[0].max())
    step = -(-(high - low + 1) // _COUNTS)
    shifted = (planes[0].ravel().astype(np.int64) - low) // step
    counts = np.bincount(shifted).tolist()
    return Detail(low, step, tuple(counts), size, tuple(round(b, 4) for b in groups))


def _channel_bits(codes: npt.NDArray[Any], width: int) -> npt.NDArray[np.float64]:
    """Ideal bits of each channel, [H * D]."""
    if not width:
        return row_information(codes.reshape(-1, codes.shape[2]))
    counts = channel_histograms(codes, width).raw
    return information(counts.reshape(-1, counts.shape[-1]), np.array(codes.shape[2]))
