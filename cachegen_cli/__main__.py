"""The command ``cachegen``: runs the app and turns errors into a sentence and an exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from types import FrameType

from cachegen_cli import console
from cachegen_cli.errors import CachegenError
from cachegen_cli.ranks import is_first, is_launched

INTERRUPTED = 130
_PATIENCE = 4  # seconds


def main() -> None:
    """Entry point of the ``cachegen`` command."""
    try:
        _main()
    except SystemExit as stop:
        parallel = sys.modules.get("cachegen_cli.parallel")
        if parallel is not None and stop.code and parallel.still_at_work(1):
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(stop.code if isinstance(stop.code, int) else 1)
        raise


def _main() -> None:
    _open_standard_streams()
    stderr = sys.stderr
    if not is_first():  # one process of several speaks
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    # a process that waits for another is in MLX, where no Python handler would ever run
    for name in ("SIGTERM", "SIGHUP") if not is_launched() else ():
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
        if stop.code and not is_first():
            time.sleep(_PATIENCE)  # or mlx.launch would end rank 0 before it has spoken
        raise
    except KeyboardInterrupt:
        console.note("interrupted")
        sys.exit(INTERRUPTED)
    except Exception as error:
        if os.environ.get("CACHEGEN_DEBUG"):
            raise
        known = error if isinstance(error, CachegenError) else _unexpected(error)
        if not is_first():
            # what went wrong everywhere rank 0 says, and mlx.launch ends the rest meanwhile
            time.sleep(_PATIENCE)
            sys.stderr = sys.stderr if known.told else stderr
        console.print_error(known)
        if is_launched():
            sys.stderr.flush()
            os._exit(known.exit_code)  # MLX would wait for the others
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
