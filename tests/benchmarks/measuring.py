"""Seconds and bytes of a call."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import mlx.core as mx


def seconds(work: Callable[[], Any]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def extra_memory(work: Callable[[], Any]) -> int:
    """Bytes that a call needs at its peak beyond what is there, of MLX and numpy together."""
    work()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    tracemalloc.start()
    work()
    numpy_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return mx.get_peak_memory() - before + numpy_peak
