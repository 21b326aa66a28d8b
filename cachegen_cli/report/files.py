"""What is shown of packed files and of verification."""

from __future__ import annotations

from cachegen_cli.report.columns import (
    CODED,
    CODED_SAVING,
    FIXED,
    RAW,
    by_layer,
    by_tensor,
    held_tokens,
    profile_notes,
    settings_of,
    skipped_notes,
    title_of,
)
from cachegen_cli.report.table import Column, View
from cachegen_cli.report.units import si_bytes
from cachegen_cli.results.files import PackedFile, PackedFiles, Verification
from cachegen_cli.wording import counted


def file_view(result: PackedFile, wide: bool) -> View:
    """A row a layer, or a row a tensor, of what is in a file."""
    measured = result.measurement
    columns, rows, totals = by_tensor(measured) if wide else by_layer(measured)
    both = measured.totals
    metadata = ", ".join(f"{k} {v}" for k, v in result.metadata.items() if len(v) <= 60)
    notes = [
        f"{result.file}: {si_bytes(result.container_bytes)}, of which the header takes "
        f"{si_bytes(result.container_header_bytes)}; 16-bit {si_bytes(both.raw_bytes)}, "
        f"{both.raw_bytes / result.container_bytes:.2f} times as much. "
        f"{held_tokens(result.prompt_tokens)}",
        f"Written by cachegen {result.tool.get('version')} with constriction "
        f"{result.tool.get('coder')}" + (f"; {metadata}." if metadata else "."),
        *profile_notes(measured.settings),
        *(f"When it was packed: {notice.message}." for notice in result.warnings),
    ]
    title = settings_of(measured.settings)
    return View(title, columns, rows, totals, notes, answers=totals[-1:])


def files_view(result: PackedFiles, wide: bool) -> View:
    """A row a file."""
    columns = (
        Column("file", "file", left=True, folds=True, names=True),
        RAW,
        FIXED,
        CODED,
        Column("container_bytes", "in all", si_bytes, about="in all: the whole file."),
        CODED_SAVING,
    )
    rows = [
        packed.measurement.totals.to_json()
        | {"file": packed.file, "container_bytes": packed.container_bytes}
        for packed in result.files
    ]
    return View(counted(len(rows), "file"), columns, rows)


def verification_view(result: Verification, wide: bool) -> View:
    """A line a layer, then whether it pays."""
    word = "entry" if result.run.model.source == "file" else "layer"
    columns = (
        Column("layer", word, names=True),
        Column("cache", "cache", left=True),
        Column("symbol_models", "models of K and V", left=True),
        Column("predicted_bytes", "predicted", si_bytes),
        Column("actual_bytes", "actual", si_bytes),
        Column("verdict", "verdict", left=True),
        Column("failure", "", left=True),
    )
    rows = [
        vars(check) | {"layer": check.places, "verdict": check.verdict} for check in result.checks
    ]
    failures = [row for row in rows if row["failure"]]
    held, failed = (
        sum(len(check.layers or (check.layer,)) for check in checks)
        for checks in (result.checks, [check for check in result.checks if check.failure])
    )
    return View(
        title_of(result.run, result.settings),
        columns,
        rows,
        answers=failures,
        notes=[
            f"FAIL: {failed} of {counted(held, word)}."
            if failures
            else f"PASS: {counted(held, word)} came back, in no more bytes than predicted.",
            _whether_it_pays(result),
            *profile_notes(result.settings),
            *skipped_notes(result.run),
        ],
    )


def _whether_it_pays(result: Verification) -> str:
    timing = result.run.timing
    measured = (
        f"16-bit {si_bytes(result.raw_bytes)}, fixed width {si_bytes(result.fixed_bytes)}, coded "
        f"{si_bytes(result.coded_bytes)}: encoded in {timing['encode_seconds']:.2f} s, decoded in "
        f"{timing['decode_seconds']:.2f} s."
    )
    below, above = result.load_below_bytes_per_second, result.load_above_bytes_per_second
    if below is None:
        return f"{measured} The coded cache cannot take the place of 16 bits."
    pays = (
        f"{measured} Loading the coded cache beats loading 16 bits below {si_bytes(round(below))}/s"
    )
    read = timing.get("prefill_seconds")
    if read is None:
        return f"{pays}. No prompt was read, so what reading it again would take is not known."
    if above is None:
        return f"{pays}, but never beats reading the prompt again ({read:.1f} s)."
    return (
        f"{pays}, and beats reading the prompt again ({read:.1f} s) above "
        f"{si_bytes(round(above))}/s."
    )
