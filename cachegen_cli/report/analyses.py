"""What is shown of analyses, sweeps and the list of models."""

from __future__ import annotations

from cachegen_cli.report.columns import (
    BITS_PER_ELEMENT,
    BYTES,
    COUNTED,
    ERROR,
    ESTIMATES,
    PARTS,
    PARTS_COUNTED,
    RAW,
    Column,
    View,
    by_layer,
    by_tensor,
    skipped_notes,
    title_of,
)
from cachegen_cli.report.units import percent, si_bytes, whole
from cachegen_cli.results import Analysis, Measurement, ModelList, Sweep, TensorResult


def analysis_view(result: Analysis, wide: bool) -> View:
    """A row a layer, or a row a tensor."""
    measured = result.measurement
    columns, rows, totals = by_tensor(measured) if wide else by_layer(measured)
    notes = [_decision(measured), *skipped_notes(result.run), COUNTED]
    if wide:
        notes.insert(1, _container(measured))
        notes.append(PARTS_COUNTED)
    return View(title_of(result.run, measured.settings), columns, rows, totals, notes)


def sweep_view(result: Sweep, wide: bool) -> View:
    """A row a setting."""
    columns = (
        Column("key_bits", "bits"),
        Column("group_size", "group"),
        *((RAW, *BYTES[1:]) if wide else BYTES[1:]),
        *((*PARTS, *ESTIMATES) if wide else ()),
        BITS_PER_ELEMENT,
        ERROR,
    )
    rows = [
        measured.totals.to_json()
        | {"key_bits": measured.settings.key_bits, "group_size": measured.settings.group_size}
        for measured in result.rows
    ]
    savings = [
        row.totals.coded_saving for row in result.rows if row.totals.coded_saving is not None
    ]
    raw = si_bytes(result.rows[0].totals.raw_bytes)
    notes = [*skipped_notes(result.run), COUNTED + " rms error: relative to the 16-bit values."]
    if savings:
        notes.insert(
            0,
            f"In 16 bits the cache takes {raw}. Entropy coding, with its tables and headers, "
            f"saves {percent(min(savings))} to {percent(max(savings))} of the fixed width.",
        )
    return View(
        title_of(result.run, result.rows[0].settings, grid=True), columns, rows, notes=notes
    )


def models_view(result: ModelList, wide: bool) -> View:
    """A row a model."""
    columns = (
        Column("id", "model", left=True, folds=True),
        *((Column("source", "source", left=True),) if wide else ()),
        Column("layers", "layers", whole),
        Column("kv_heads", "heads", whole),
        Column("head_dim", "dim", whole),
        Column("context", "context", whole),
        Column("bytes_per_token", "a token", si_bytes),
        Column("bytes_8k", "8k", si_bytes),
        Column("bytes_32k", "32k", si_bytes),
        Column("bytes_128k", "128k", si_bytes),
        *((Column("problem", "problem", left=True),) if wide else ()),
    )
    notes = [f"{m.id}: {m.problem}." for m in result.models if m.problem and not wide]
    if not result.models:
        notes = ["None is here: --model OWNER/NAME downloads one from Hugging Face."]
    return View(
        "The models on this machine and their KV caches in 16 bits",
        columns,
        [vars(m) for m in result.models],
        notes=[
            *notes,
            "k = 1,024 tokens, also beyond the context that a model was made for. A sliding window "
            "stops growing when it is full.",
        ],
    )


def _decision(measured: Measurement) -> str:
    """From 16 bits to coded bytes, and what decided."""
    totals = measured.totals
    fixed = si_bytes(totals.fixed_bytes)
    if totals.fixed_bytes > totals.raw_bytes:
        fixed += " (more than 16 bits: the groups are mostly padding)"
    if totals.coded_bytes is None or totals.coded_saving is None:
        return (
            f"16-bit {si_bytes(totals.raw_bytes)} -> fixed width {fixed} -> entropy "
            f"{si_bytes(totals.entropy_bytes)}. {_delta_sentence(measured)}"
        )
    start = (
        f"16-bit {si_bytes(totals.raw_bytes)} -> fixed width {fixed} -> coded "
        f"{si_bytes(totals.coded_bytes)}: "
    )
    beside = (totals.table_bytes or 0) + (totals.header_bytes or 0)
    saved = totals.fixed_bytes - totals.coded_bytes + beside
    if totals.coded_saving <= 0:
        return (
            f"{start}entropy coding does not pay here. It takes {si_bytes(max(saved, 0))} off the "
            f"codes, and its tables and headers cost {si_bytes(beside)}. "
            f"{_delta_sentence(measured)}"
        )
    return (
        f"{start}entropy coding saves {percent(totals.coded_saving)} of the fixed width. Of "
        f"{si_bytes(saved)} that it takes off the codes, tables and headers eat "
        f"{si_bytes(beside)}; parameters, which it does not touch, are "
        f"{percent(totals.parameter_bytes / totals.coded_bytes)} of what is left. "
        f"{_delta_sentence(measured)}"
    )


def _container(measured: Measurement) -> str:
    """What a file of it all would take."""
    return (
        f"A file of all sections takes about {si_bytes(measured.container_bytes)} with a header of "
        f"{si_bytes(measured.container_header_bytes)}."
    )


def _delta_sentence(measured: Measurement) -> str:
    settings, tensors = measured.settings, measured.tensors
    if settings.delta == "auto":
        chosen = sum(t.delta for t in tensors)
        return (
            f"Token deltas were smaller than the codes themselves in {chosen} of "
            f"{len(tensors)} tensors."
        )
    raw, delta = (sum(_estimate(t, use, settings.pooled) for t in tensors) for use in (False, True))
    used, other, name = (
        (delta, raw, "the codes themselves")
        if settings.delta == "on"
        else (raw, delta, "token deltas")
    )
    return (
        f"As asked, token deltas are {settings.delta}: {si_bytes(used)} against "
        f"{si_bytes(other)} for {name}."
    )


def _estimate(tensor: TensorResult, delta: bool, pooled: bool) -> int:
    name = f"{'delta' if delta else 'raw'}_{'pooled' if pooled else 'channel'}_bytes"
    value: int = getattr(tensor, name)
    return value
