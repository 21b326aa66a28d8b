"""The callback through which long work says how far it is, without knowing a terminal."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, of); stages are named in `console`."""


def no_progress(stage: str, done: int, of: int) -> None:
    """Show nothing."""
