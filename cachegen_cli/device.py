"""MLX, and the device it computes on. Import ``mx`` from here.

The Linux CPU wheel of MLX links the reference BLAS. Symbols of an OpenBLAS that is
loaded first win, which makes float32 products some 30 times faster, so it has to
be loaded before ``mlx.core`` is.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

if sys.platform == "linux" and "mlx.core" not in sys.modules:
    with contextlib.suppress(OSError):
        ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)

import mlx.core as mx

__all__ = ["Paced", "device_name", "fused", "mx", "on_cpu"]


def device_name() -> str:
    """What the device calls itself: "Apple M3 Max", say."""
    return str(mx.device_info(mx.default_device())["device_name"])


def on_cpu() -> bool:
    """Whether MLX computes on the CPU (no Metal, no CUDA)."""
    return mx.default_device().type == mx.DeviceType.cpu


class Paced:
    """Evaluates groups of arrays one after the other: the device works on one while the next is
    described, but never on two, so that memory stays small.
    """

    def __init__(self) -> None:
        self._begun: list[Any] = []

    def start(self, arrays: list[Any]) -> None:
        """Wait for the arrays before, and begin to evaluate these."""
        mx.eval(self._begun)
        mx.async_eval(arrays)  # type: ignore[no-untyped-call]
        self._begun = arrays


@cache
def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays whose operations a GPU does together, in few kernels.

    A CPU gains nothing from that, and MLX would need a C++ compiler for it.
    """
    return function if on_cpu() else mx.compile(function)
