"""Everything that is printed: the result on stdout, all else on stderr."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from cachegen_cli.errors import CachegenError, OutputError
from cachegen_cli.progress import Progress, no_progress

_STAGES = {
    "convert": "Converting the GGUF file (once)",
    "load": "Loading the model",
    "prefill": "Reading the prompt",
    "analyze": "Analyzing layers",
    "reference": "Reading the continuation",
    "quality": "Reading it on compressed caches",
    "sensitivity": "Compressing one tensor at a time",
    "weigh": "Weighing layers",
    "calibrate": "Solving for bases",
    "compare": "Measuring schemes",
    "insights": "Measuring the paper's observations",
    "plan": "Measuring widths and plans",
    "models": "Reading configurations",
    "pack": "Packing layers",
    "unpack": "Unpacking layers",
    "verify": "Encoding and decoding layers",
}


def print_result(text: str) -> None:
    """Write a rendered result to stdout."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader had enough
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        raise OutputError(
            f"stdout cannot be written: {error.strerror}", "-o FILE writes elsewhere"
        ) from error


def _discard_stdout() -> None:
    """Let what is still buffered go nowhere, so that nothing complains at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Style(NamedTuple):
    """How a result is drawn: `report.render`'s arguments."""

    width: int = 80
    color: bool = False
    fit: bool = False


def stdout_style() -> Style:
    """What stdout takes: its width if it is a terminal, colors if they are welcome there."""
    if not sys.stdout.isatty():
        return Style()
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
    return Style(shutil.get_terminal_size().columns, not plain, fit=True)


def note(text: str) -> None:
    """Say something beside the result, on stderr; one that is full or closed ends nothing."""
    with suppress(OSError):
        print(text, file=sys.stderr)


def warn(messages: Sequence[str]) -> None:
    """Print warnings on stderr."""
    for message in messages:
        note(f"warning: {message}")


def print_error(error: CachegenError) -> None:
    """One sentence and one hint on stderr."""
    note(f"error: {error.message}")
    if error.hint:
        note(f"hint: {error.hint}")


def silence_libraries(quiet: bool) -> None:
    """Keep the chatter of the model libraries off stderr, download bars if nobody watches."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if quiet or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


@contextmanager
def progress(quiet: bool) -> Generator[Progress]:
    """A progress callback (stage, done, of) that draws on stderr if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield no_progress
        return
    from rich import progress as rich_progress
    from rich.console import Console

    bar = rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("", total=None)
    current = ""

    def update(stage: str, done: int, of: int) -> None:
        nonlocal current
        bar.start()  # not before: a hub download draws bars of its own
        if stage != current:
            current = stage
            bar.reset(task, description=_STAGES[stage])
        # a total of one has nothing to count: the bar only moves
        bar.update(task, completed=done, total=of if of > 1 else None)

    try:
        yield update
    finally:
        bar.stop()
