"""Where a text repeats itself: for every token, earlier ones with the same tokens before them.

A model's keys and values of a token resemble those of the same token in the same context,
the more so the longer the common context and the shallower the layer. The coder predicts
from the rows of such tokens; what it needs for that is which tokens are equal, not which
they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SINGLE, SHORT, LONG = 8, 8, 32  # first tokens coded one by one; tokens a block before and after
SHORT_UNTIL = 1024
CONTEXT = 8  # longest common context that is looked for
AVERAGED = 4  # earlier tokens at most, whose rows are averaged
_SHORT_CONTEXT = 2  # up to which they are: a longer one's last occurrence is better alone
BUCKETS = np.array([0, 1, 2, 2, 3, 3, 3, 3, 4])  # by length of the common context
N_BUCKETS = 5


class Repeats(NamedTuple):
    """Earlier tokens of each token.

    Attributes:
        earlier: [AVERAGED, T] positions before the token's block, -1 where there are fewer.
        bucket: [T] 0 where there is none, else larger for a longer common context.
    """

    earlier: npt.NDArray[np.int64]
    bucket: npt.NDArray[np.int64]


def blocks(tokens: int) -> list[tuple[int, int]]:
    """(first, end) of the blocks of tokens in which a coder learns; each knows those before."""
    starts = list(range(min(SINGLE, tokens)))
    starts += range(SINGLE, min(SHORT_UNTIL, tokens), SHORT)
    starts += range(SHORT_UNTIL, tokens, LONG)
    return list(pairwise([*starts, tokens]))


def anonymous(tokens: Sequence[int]) -> list[int]:
    """Numbers that are equal where tokens are, in the order of their first occurrence."""
    known: dict[int, int] = {}
    return [known.setdefault(token, len(known)) for token in tokens]


def repeats(tokens: Sequence[int]) -> Repeats:
    """Look for each token's last occurrences with the longest common context.

    Args:
        tokens: numbers that are equal where tokens are.
    """
    earlier = np.full((AVERAGED, len(tokens)), -1, np.int64)
    lengths = np.zeros(len(tokens), np.int64)
    seen: list[dict[tuple[int, ...], list[int]]] = [{} for _ in range(CONTEXT + 1)]
    for start, end in blocks(len(tokens)):
        for t in range(start, end):
            found, length = _last(tokens, t, seen)
            lengths[t] = length
            earlier[: len(found), t] = found
        for t in range(start, end):
            for n in range(1, min(CONTEXT, t + 1) + 1):
                seen[n].setdefault(tuple(tokens[t - n + 1 : t + 1]), []).append(t)
    return Repeats(earlier, BUCKETS[lengths])


def _last(
    tokens: Sequence[int], t: int, seen: Sequence[dict[tuple[int, ...], list[int]]]
) -> tuple[list[int], int]:
    """(positions, newest first, length of their common context with t)."""
    for n in range(min(CONTEXT, t + 1), 0, -1):
        places = seen[n].get(tuple(tokens[t - n + 1 : t + 1]))
        if places:
            return places[: -1 - (AVERAGED if n <= _SHORT_CONTEXT else 1) : -1], n
    return [], 0
