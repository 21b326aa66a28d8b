"""Files are written whole or not at all, and never over another by accident."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cachegen_cli.errors import OutputError, UsageError

FORMATS = ("table", "json", "csv", "markdown", "html")
WHOLE = ("json", "html")  # which hold every row
FOR_MACHINES = ("csv",)  # which hold every column
SUFFIXES = {".txt": "table", ".json": "json", ".csv": "csv", ".md": "markdown", ".html": "html"}
"""The format that a file's suffix names."""


def check_target(path: Path, force: bool) -> None:
    """Refuse a target before the work for it starts.

    Raises:
        UsageError: it exists and ``force`` is off, or it is or needs a folder.
        OutputError: its folder cannot be written.
    """
    try:
        folder = path.resolve().parent
        path.exists()
    except OSError as error:
        raise UsageError(f"'{path}' cannot be a file: {error.strerror}", "name another") from None
    if path.is_dir():
        raise UsageError(f"'{path}' is a folder", "name a file")
    if path.is_file() and not force:
        raise UsageError(f"'{path}' exists and is not overwritten", "add --force, or name another")
    if not folder.is_dir():
        raise UsageError(f"there is no folder '{folder}'", "make it first")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"folder '{folder}' cannot be written", "choose another")


@contextmanager
def drafted(path: Path, suffix: str = "") -> Generator[Path]:
    """A hidden path beside ``path`` to write to; it takes that place when the block ends well.

    Raises:
        OutputError: for any OSError of the block, such as a full disk.
    """
    target = path.resolve()  # a link stays, what it points to is replaced
    draft = target.with_name(f".{secrets.token_hex(8)}{suffix}")
    try:
        with _as_output_error(path):
            yield draft
            draft.replace(target)
    finally:
        with suppress(OSError):
            draft.unlink()


def sync(file: BinaryIO) -> None:
    """Wait until a file's bytes are on the disk."""
    file.flush()
    os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a file so that it appears complete or not at all.

    Raises:
        OutputError: the disk is full, or the folder cannot be written.
    """
    data = text.encode(errors="replace")
    if path.exists() and not path.is_file():  # a device or a pipe has nothing to replace
        with _as_output_error(path):
            path.write_bytes(data)
        return
    with drafted(path) as draft, draft.open("xb") as file:
        file.write(data)
        sync(file)


@contextmanager
def _as_output_error(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"'{path}' cannot be written: {error.strerror}", "choose another place"
        ) from error
