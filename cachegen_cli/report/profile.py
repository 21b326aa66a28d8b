"""Where a run's time and memory went."""

from __future__ import annotations

from collections.abc import Mapping

from cachegen_cli.report.units import percent, si_bytes

_STAGES = (
    "load",
    "prefill",
    "reference",
    "calibration",
    "analysis",
    "quantize",
    "count",
    "code",
    "encode",
    "decode",
    "render",
)
_WITHIN = ("quantize", "count", "code", "encode", "decode")  # the analysis, beside each other


def profile_text(timing: Mapping[str, float]) -> str:
    """A table of the timing key of a profiled run, then its peak memory."""
    total = timing["total_seconds"]
    rows = []
    for stage in _STAGES:
        seconds = timing.get(f"{stage}_seconds")
        if seconds is not None:
            name = f"  {stage}" if stage in _WITHIN else stage
            rows.append((name, seconds, percent(seconds / total) if total else ""))
    rows.append(("in all", total, ""))
    lines = [f"{name:<13}{seconds:>9.3f} s{share:>9}".rstrip() for name, seconds, share in rows]
    peak, mlx = (int(timing[key]) for key in ("peak_memory_bytes", "mlx_peak_memory_bytes"))
    return "\n".join(
        [
            "Where the time went; parts of the analysis go on beside each other:",
            *lines,
            f"peak memory: {si_bytes(peak)} of the process, {si_bytes(mlx)} of MLX's arrays",
        ]
    )
