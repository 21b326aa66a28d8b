"""What can go wrong for a user: one sentence, one hint, one exit code."""

from __future__ import annotations

CHECK_FAILED = 3  # exit code where a check that was asked for does not hold


class CachegenError(Exception):
    """Base of every error that the tool reports.

    Attributes:
        message: One sentence that says what is wrong.
        hint: What to do about it, or "".
        exit_code: 1 failed, 2 usage.
    """

    exit_code = 1
    told = False  # whether all processes of a run know of it

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(CachegenError, ValueError):
    """An option or argument that no input could make valid."""

    exit_code = 2


class ModelError(CachegenError):
    """A model that cannot be found, read or run."""


class InputError(CachegenError):
    """A prompt, tensor or file whose content cannot be used."""


class OutputError(CachegenError):
    """A result that cannot be written."""
