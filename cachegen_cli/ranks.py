"""The processes of one run under ``mlx.launch``, MLX's distributed engine."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from cachegen_cli.errors import CachegenError

T = TypeVar("T")

_LAUNCHED = ("MLX_RANK", "OMPI_COMM_WORLD_RANK")  # what its launchers set


def is_launched() -> bool:
    """Whether this process is one of several; needs no MLX."""
    return any(name in os.environ for name in _LAUNCHED)


def is_first() -> bool:
    """Whether this process is rank 0, or alone; needs no MLX."""
    return all(os.environ.get(name, "0") == "0" for name in _LAUNCHED)


@dataclass(frozen=True)
class Ranks:
    """This process among all; rank 0 alone prints and writes."""

    rank: int = 0
    size: int = 1
    group: Any = None


ALONE = Ranks()


@cache
def ranks() -> Ranks:
    """Where this process stands; alone, unless it was launched as one of several.

    Raises:
        CachegenError: MLX cannot reach the others.
    """
    if not is_launched():
        return Ranks()
    from cachegen_cli.device import mx

    try:
        group = mx.distributed.init(strict=True)
    except (RuntimeError, ValueError) as error:
        raise CachegenError(
            f"MLX cannot reach the other processes: {error}",
            "start all with mlx.launch, for example: mlx.launch -n 2 --backend ring cachegen ...",
        ) from error
    return Ranks(group.rank(), group.size(), group)


def gathered(value: T | CachegenError) -> list[T]:
    """What every rank gives, in their order, on all of them.

    Raises:
        CachegenError: that of the first rank that gives one, on all ranks alike.
    """
    here = ranks()
    found: list[Any] = [value]
    if here.size > 1:
        found = [pickle.loads(data) for data in _exchanged(pickle.dumps(value), here)]
    for one in found:
        if isinstance(one, CachegenError):
            one.told = True
            raise one
    return found


def _exchanged(data: bytes, here: Ranks) -> list[bytes]:
    """The bytes of every rank."""
    import numpy as np

    from cachegen_cli.device import mx

    def all_of(x: Any) -> Any:
        return np.asarray(
            mx.distributed.all_gather(mx.array(x), group=here.group, stream=mx.cpu)
        ).reshape(here.size, -1)

    lengths = all_of(np.array([len(data)], np.int32))[:, 0].tolist()
    padded = np.zeros(max(lengths), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    return [row[:n].tobytes() for row, n in zip(all_of(padded), lengths, strict=True)]
