"""MLX, and the device it computes on. Import ``mx`` from here.

The Linux CPU wheel of MLX links the reference BLAS. Symbols of an OpenBLAS that is
loaded first win, which makes float32 products some 30 times faster, so it has to
be loaded before ``mlx.core`` is.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any

if sys.platform == "linux" and "mlx.core" not in sys.modules:
    with contextlib.suppress(OSError):
        ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)

import mlx.core as mx

__all__ = ["Paced", "device_name", "mx", "on_cpu"]


def device_name() -> str:
    """What the device calls itself: "Apple M3 Max", say."""
    return str(mx.device_info(mx.default_device())["device_name"])


def on_cpu() -> bool:
    """Whether MLX computes on the CPU (no Metal, no CUDA)."""
    return mx.default_device().type == mx.DeviceType.cpu


class Paced:
    """Evaluates one group of arrays after the other: the next is begun before the last is
    waited for, so that the device never idles, but no more, so that memory stays small.
    """

    def __init__(self) -> None:
        self._last: list[Any] = []

    def start(self, arrays: list[Any]) -> None:
        """Begin to evaluate arrays, then wait for those before them."""
        mx.async_eval(arrays)  # type: ignore[no-untyped-call]
        mx.eval(self._last)
        self._last = arrays
