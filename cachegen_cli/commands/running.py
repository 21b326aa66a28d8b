"""What every command that runs a model does around its library function."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cachegen_cli import console
from cachegen_cli.options.inputs import InputOptions
from cachegen_cli.options.outputs import ReportOptions
from cachegen_cli.options.profiling import ProfilingOptions
from cachegen_cli.options.settings import CheckOptions
from cachegen_cli.options.typed import command_of


def run(
    work: Callable[..., Any],
    source: InputOptions,
    output: ReportOptions,
    profiling: ProfilingOptions,
    *,
    reads_on: bool = True,
    checks: CheckOptions | None = None,
    **arguments: Any,
) -> Any:
    """Call a library function on the model and texts, deliver its result, and return it.

    Args:
        reads_on: whether the model reads on after the cache, so that a text may follow one.
        checks: what the result will be held to.
        arguments: of the function.
    """
    started = time.perf_counter()
    prepared = source.capture_options(output.quiet, reads_on)
    if checks:
        checks.check_applies(prepared["source"])
    with console.progress(output.quiet) as progress:
        result = work(**prepared, **arguments, progress=progress)
    command = command_of(sys.argv[1:], output.OWN)
    result = replace(result, run=replace(result.run, command=command))
    figures = profiling.figures(result, output, started)
    result = replace(result, run=result.run.with_timing(figures))
    output.deliver(result, result.run.messages)
    profiling.tell(result.run.timing, output.quiet)
    return result
