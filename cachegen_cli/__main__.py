"""The command ``cachegen``: runs the app and turns errors into a sentence and an exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType

from cachegen_cli import console
from cachegen_cli.errors import CachegenError

INTERRUPTED = 130


def main() -> None:
    """Entry point of the ``cachegen`` command."""
    _open_standard_streams()
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a narrow encoding must not end a run
            stream.reconfigure(errors="replace")
    try:
        from cachegen_cli.cli import app

        app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            console.note("interrupted")
        raise
    except KeyboardInterrupt:
        console.note("interrupted")
        sys.exit(INTERRUPTED)
    except Exception as error:
        if os.environ.get("CACHEGEN_DEBUG"):
            raise
        known = error if isinstance(error, CachegenError) else _unexpected(error)
        console.print_error(known)
        sys.exit(known.exit_code)


def _open_standard_streams() -> None:
    """Put /dev/null where a standard stream is closed, so that no file takes its number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _unexpected(error: Exception) -> CachegenError:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return CachegenError(
        f"cachegen failed unexpectedly: {text}", "CACHEGEN_DEBUG=1 shows where; please report it"
    )


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)  # unwinds, so that unfinished files are removed


if __name__ == "__main__":
    main()
