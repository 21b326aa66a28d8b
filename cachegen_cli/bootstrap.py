"""Errors of means over the positions of a continuation, by a circular block bootstrap.

Neighbouring positions are alike, so whole blocks of them are drawn (Politis and Romano, 1992),
within each text. What is drawn depends on the lengths of the texts alone: figures of two
settings on the same texts are resampled together, so that their difference or ratio is paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DRAWS = 2000
FEWEST = 8  # positions, and blocks of a text, with which there is an error
BLOCK = 16  # positions; fewer where a text would have less than `FEWEST` of them
_SEED = 20231


def resampled_means(values: Floats, lengths: Sequence[int]) -> Floats | None:
    """Return the mean [DRAWS] of values over positions in every resample.

    Args:
        values: [n], those of one text after those of another.
        lengths: positions of each text; they sum to n.

    Returns:
        None where there are less than `FEWEST` positions, which say nothing of an error.
    """
    if values.size < FEWEST:
        return None
    sums, end = np.zeros(DRAWS), 0
    for place, n in enumerate(lengths):
        text, end = values[end : end + n], end + n
        block = min(BLOCK, max(1, n // FEWEST))
        circle = np.cumsum(np.concatenate([[0.0], text, text[: block - 1]]))
        of_blocks = circle[block:] - circle[:-block]
        sums += of_blocks[_starts(n, block, place)].mean(axis=1) * (n / block)
    return sums / values.size


def interval(draws: Floats) -> tuple[float, float]:
    """Return the ends of the central 95 % of the draws."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


@lru_cache(maxsize=64)
def _starts(n: int, block: int, place: int) -> npt.NDArray[np.intp]:
    """Return where the blocks of each resample start, [DRAWS, blocks]."""
    random = np.random.default_rng([_SEED, n, place])
    return random.integers(n, size=(DRAWS, -(-n // block)))
