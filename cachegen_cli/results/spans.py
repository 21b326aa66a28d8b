"""Numbers of layers for people."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_RUNS = 2


def spans(numbers: Sequence[int]) -> str:
    """ "5", "0-29", "0-4,6", or "25 of 0-28" where that would be long."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    if len(runs) > _MOST_RUNS:
        return f"{len(numbers)} of {min(numbers)}-{max(numbers)}"
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
