"""The option that says where a run's time and memory went."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cachegen_cli import console
from cachegen_cli.options.outputs import ReportOptions
from cachegen_cli.ranks import is_first


@dataclass(frozen=True)
class ProfilingOptions:
    """Whether the run is profiled."""

    profile_run: Annotated[
        bool,
        typer.Option(
            "--profile-run",
            help="Say where the time went and how much memory was used; in JSON under timing.",
        ),
    ] = False

    def figures(self, result: Any, output: ReportOptions, started: float) -> dict[str, float]:
        """Times in seconds and peaks in bytes, of a run that ``started``; {} if not asked for."""
        if not self.profile_run:
            return {}
        from cachegen_cli.device import mx

        measured = time.perf_counter()
        output.rendered(result)
        ended = time.perf_counter()
        return {
            "render_seconds": round(ended - measured, 6),
            "total_seconds": round(ended - started, 6),
            "peak_memory_bytes": peak_memory(),
            "mlx_peak_memory_bytes": mx.get_peak_memory(),
        }

    def tell(self, timing: dict[str, float], quiet: bool) -> None:
        """Print the profile on stderr, on rank 0 alone."""
        if self.profile_run and not quiet and is_first():
            from cachegen_cli.report.profile import profile_text

            console.note(profile_text(timing))


def peak_memory() -> int:
    """The most memory that the process ever had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
