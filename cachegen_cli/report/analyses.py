"""What is shown of analyses, sweeps and the list of models."""

from __future__ import annotations

from cachegen_cli.report import qualities
from cachegen_cli.report.bars import with_bars
from cachegen_cli.report.columns import (
    BITS_PER_ELEMENT,
    BYTES,
    CODED,
    CODED_BARS,
    CODED_SAVING,
    ERROR,
    ESTIMATES,
    PARTS,
    RAW,
    by_layer,
    by_tensor,
    profile_notes,
    skipped_notes,
    stored_notes,
    title_of,
)
from cachegen_cli.report.entries import entry_notes, kv_bits_notes, spread_notes
from cachegen_cli.report.plot import Point, scatter
from cachegen_cli.report.table import Column, View
from cachegen_cli.report.units import percent, si_bytes, whole
from cachegen_cli.results.analyses import Analysis, Sweep
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.models import ModelList
from cachegen_cli.results.sizes import TensorResult


def analysis_view(result: Analysis, wide: bool) -> View:
    """A row a layer, or a row a tensor."""
    measured = result.measurement
    shown = by_tensor if wide else by_layer
    columns, rows, totals = shown(measured, result.run)
    profile = [
        *stored_notes(measured.settings, bool(measured.quality)),
        *profile_notes(measured.settings),
    ]
    entries = entry_notes(measured)
    notes = [
        _decision(measured),
        *spread_notes(measured),
        *profile,
        *entries,
        *skipped_notes(result.run),
    ]
    if wide:
        notes.insert(1, _container(measured))
        notes += kv_bits_notes(measured)
    if measured.quality:
        notes.insert(1, qualities.quality_sentence(measured.quality))
    if measured.quality and not wide:
        notes.append(" ".join(column.about for column in qualities.KL))
    if measured.quality and wide:
        columns += qualities.ALL
        rows = [qualities.BLANK | row for row in rows]
        totals = [
            *(qualities.BLANK | row for row in totals[:-1]),
            totals[-1] | measured.quality.to_json(),
        ]
    title = title_of(result.run, measured.settings)
    return View(title, columns, rows, totals, notes, answers=totals[-1:])


def sweep_view(result: Sweep, wide: bool) -> View:
    """A row a setting."""
    has_quality = all(row.quality for row in result.rows)
    sizes: tuple[Column, ...] = BYTES[1:]
    if wide:
        sizes = (RAW, *BYTES[1:4], *CODED_BARS, *PARTS, *ESTIMATES)
    elif has_quality:
        sizes = (CODED, CODED_SAVING)
    columns = (
        Column("key_bits", "bits", _width, names=True),
        *(
            (Column("group_size", "group", _width, names=True),)
            if wide or result.rows[0].settings.group_size
            else ()
        ),
        *((Column("schedule", "schedule", left=True),) if wide else ()),
        *sizes,
        BITS_PER_ELEMENT,
        *((ERROR,) if wide or not has_quality else ()),
        *(_quality_columns(wide) if has_quality else ()),
    )
    rows = [
        measured.totals.to_json()
        | (measured.quality.to_json() if measured.quality else {})
        | {
            "key_bits": measured.settings.key_bits if not measured.settings.plan else None,
            "group_size": measured.settings.group_size,
            "schedule": measured.settings.schedule,
            "pareto_optimal": optimal,
        }
        for measured, optimal in zip(result.rows, result.pareto, strict=True)
    ]
    rows = with_bars(rows)
    savings = [
        row.totals.coded_saving for row in result.rows if row.totals.coded_saving is not None
    ]
    raw = si_bytes(result.rows[0].totals.raw_bytes)
    first = result.rows[0].settings
    profile = [*stored_notes(first, has_quality), *profile_notes(first)]
    spread = [
        f"{row.settings.label}: {note[0].lower()}{note[1:]}"
        for row in result.rows
        for note in spread_notes(row)
    ]
    notes = [
        *spread,
        *profile,
        *skipped_notes(result.run),
    ]
    if savings:
        notes.insert(
            0,
            f"In 16 bits the cache takes {raw}. Entropy coding, with its tables and headers, "
            f"saves {_range(savings)} of the fixed width.",
        )
    return View(
        title_of(result.run, first, grid=True),
        columns,
        rows,
        notes=notes,
        drawing=_plot(result) if has_quality else (),
        answers=[row for row in rows if row["pareto_optimal"]],
    )


def _range(savings: list[float]) -> str:
    low, high = percent(min(savings)), percent(max(savings))
    return low if low == high else f"{low} to {high}"


def _width(bits: int | None) -> str:
    """A width or group size; 0 where the scheme has none, None where a plan has many."""
    return "plan" if bits is None else str(bits or "-")


def _quality_columns(wide: bool) -> tuple[Column, ...]:
    best = Column(
        "pareto_optimal", "", lambda optimal: "*" if optimal else "", left=True,
        about="*: no other row has both fewer bytes and less KL.",
    )  # fmt: skip
    figures = qualities.ALL if wide else (*qualities.KL, qualities.PERPLEXITY_DIFFERENCE)
    return (*figures, best)


def _plot(result: Sweep) -> list[str]:
    """KL against bits an element, Pareto-optimal settings on top."""
    points = [
        (optimal, Point(rate, row.quality.kl_nats, mark))
        for row, optimal in zip(result.rows, result.pareto, strict=True)
        if row.quality and (rate := row.totals.coded_bits_per_element) is not None
        for mark in (("P" if row.settings.plan else str(row.settings.key_bits)) if optimal else "·")
    ]
    return scatter(
        [point for _, point in sorted(points, key=lambda pair: bool(pair[0]))],
        "coded bits an element",
        "KL in nats. Digits: widths of Pareto-optimal settings, P: a plan, ·: the rest",
    )


_THOUSANDS = (
    "k = 1,024 tokens, also beyond the context that a model was made for. A sliding window stops "
    "growing when it is full."
)


def models_view(result: ModelList, wide: bool) -> View:
    """A row a model."""
    columns = (
        Column("id", "model", left=True, folds=True, names=True),
        *((Column("source", "source", left=True),) if wide else ()),
        Column("layers", "layers", whole),
        Column("kv_heads", "heads", whole),
        Column("head_dim", "dim", whole),
        Column("context", "context", whole),
        Column("bytes_per_token", "a token", si_bytes),
        Column("bytes_8k", "8k", si_bytes, about=_THOUSANDS),
        Column("bytes_32k", "32k", si_bytes, about=_THOUSANDS),
        Column("bytes_128k", "128k", si_bytes, about=_THOUSANDS),
        *((Column("problem", "problem", left=True),) if wide else ()),
    )
    notes = [f"{m.id}: {m.problem}." for m in result.models if m.problem and not wide]
    if not result.models:
        notes = ["None is here: --model OWNER/NAME downloads one from Hugging Face."]
    return View(
        "The models on this machine and their KV caches in 16 bits",
        columns,
        [vars(m) for m in result.models],
        notes=notes,
    )


def _decision(measured: Measurement) -> str:
    """From 16 bits to coded bytes, and what decided."""
    totals = measured.totals
    fixed = si_bytes(totals.fixed_bytes)
    if totals.fixed_bytes > totals.raw_bytes and measured.settings.scheme == "group":
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
    if all(tensor.symbol_model == "adaptive" for tensor in measured.tensors if tensor.elements):
        return (
            f"16-bit {si_bytes(totals.raw_bytes)} -> coded {si_bytes(totals.coded_bytes)}, "
            f"{totals.raw_bytes / totals.coded_bytes:.2f} times smaller. Its codes have any size: "
            "the fixed width is that of each tensor's largest, so a saving against it says little."
        )
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
        chosen = sum(bool(t.delta) for t in tensors)
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
