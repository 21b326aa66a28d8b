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

__all__ = ["device_name", "fused", "mx", "on_cpu", "on_cuda", "start"]


def device_name() -> str:
    """What the device calls itself: "Apple M3 Max", say."""
    return str(mx.device_info(mx.default_device())["device_name"])


def on_cpu() -> bool:
    """Whether MLX computes on the CPU (no Metal, no CUDA)."""
    return mx.default_device().type == mx.DeviceType.cpu


def on_cuda() -> bool:
    """Whether MLX computes on an NVIDIA GPU, by CUDA."""
    return not on_cpu() and mx.cuda.is_available()


_begun: list[mx.array] = []


def start(arrays: list[mx.array]) -> None:
    """Wait for what was started before, and begin to evaluate these.

    So the device works on one group of arrays while the next is described, but never holds the
    temporaries of two: a CPU lets go of them once one of the group's arrays is waited for, a
    GPU once all its work is.
    """
    mx.eval(_begun)
    mx.synchronize()
    mx.async_eval(arrays)  # type: ignore[no-untyped-call]
    _begun[:] = [min(arrays, key=lambda array: array.nbytes)]


@cache
def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays whose operations a GPU does together, in few kernels.

    A CPU gains nothing from that, and MLX would need a C++ compiler for it.
    """
    return function if on_cpu() else mx.compile(function)
