"""An independent numpy account of the seed's numerics, for comparison."""

from __future__ import annotations

from collections import Counter
from math import ceil, log2

import numpy as np


def quantize(x: np.ndarray, bits: int, group_size: int):
    """x [N, D] -> (codes [N, D], scale, zero [n_groups, D]), float32 in the same order."""
    x = x.astype(np.float32)
    n_groups = -(-len(x) // group_size)
    padded = np.concatenate([x, np.repeat(x[-1:], n_groups * group_size - len(x), axis=0)])
    codes, scales, zeros = [], [], []
    levels = np.float32(2**bits - 1)
    for group in np.split(padded, n_groups):
        low = group.min(axis=0)
        step = np.maximum((group.max(axis=0) - low) / levels, np.float32(1e-8))
        codes.append(np.clip(np.rint((group - low) / step), 0, levels))
        scales.append(step)
        zeros.append(low)
    return np.concatenate(codes)[: len(x)].astype(int), np.array(scales), np.array(zeros)


def fixed_bytes(n_rows: int, dim: int, bits: int, group_size: int) -> int:
    return ceil(n_rows * dim * bits / 8) + ceil(n_rows / group_size) * dim * 4


def entropy_bytes(codes: np.ndarray, bits: int, group_size: int, delta: bool, channel: bool) -> int:
    n_rows, dim = codes.shape
    if delta and n_rows > 1:
        codes = np.concatenate([codes[:1], np.diff(codes, axis=0)])
    streams = codes.T if channel else codes.reshape(1, -1)
    total = 0.0
    for stream in streams:
        n = len(stream)
        counts = Counter(stream.tolist()).values()
        total += min(-sum(c / n * log2(c / n) for c in counts), bits) * n
    return ceil(total / 8) + ceil(n_rows / group_size) * dim * 4
