"""What of a result is shown: title, columns, rows and sentences, for every format.

A cell holds the raw number under its column's key; only the human formats round it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cachegen_cli.report.units import bits, error, percent, si_bytes, whole
from cachegen_cli.results import (
    Analysis,
    Bytes,
    Measurement,
    ModelList,
    Result,
    Run,
    Settings,
    Sweep,
    TensorResult,
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column: ``key`` names its cells, ``show`` writes one for people.

    Text may be folded where ``folds`` says so; nothing else is ever cut or wrapped.
    """

    key: str
    header: str
    show: Callable[[Any], str] = str
    left: bool = False
    folds: bool = False


@dataclass(frozen=True)
class View:
    """A table with a title above, totals at its foot and sentences below."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    totals: Sequence[Row] = ()
    notes: Sequence[str] = ()


def yes_no(value: bool | None) -> str:
    """For a choice; "" where it does not apply."""
    return "" if value is None else "yes" if value else "no"


def view(result: Result, wide: bool) -> View:
    """The default or the wide view of any result."""
    if isinstance(result, Analysis):
        return _analysis_wide(result) if wide else _analysis(result)
    if isinstance(result, Sweep):
        return _sweep(result, wide)
    return _models(result)


_BYTES = (
    Column("raw_bytes", "16-bit", si_bytes),
    Column("fixed_bytes", "fixed", si_bytes),
    Column("entropy_bytes", "entropy", si_bytes),
    Column("entropy_saving", "saving", percent),
)
_PARAMETERS = Column("parameter_bytes", "params", si_bytes)
_ESTIMATES = (
    Column("raw_channel_bytes", "raw/chan", si_bytes),
    Column("raw_pooled_bytes", "raw/pool", si_bytes),
    Column("delta_channel_bytes", "delta/chan", si_bytes),
    Column("delta_pooled_bytes", "delta/pool", si_bytes),
)
_BITS_PER_ELEMENT = Column("entropy_bits_per_element", "bits/el", bits)
_ERROR = Column("relative_rms_error", "rms error", error)
_COUNTED = (
    "16-bit: 2 bytes an element. fixed: codes at their width + parameters. entropy: Shannon "
    "estimate of the codes without probability tables + parameters. saving: 1 - entropy/fixed. "
    "bits/el: entropy bytes an element, in bits."
)


def _analysis(result: Analysis) -> View:
    columns = (
        Column("layer", "layer"),
        *_BYTES,
        Column("key_bits_per_element", "K bits/el", bits),
        Column("value_bits_per_element", "V bits/el", bits),
    )
    measured = result.measurement

    def row(label: Any, both: Bytes, keys: Bytes, values: Bytes) -> Row:
        return both.to_json() | {
            "layer": label,
            "key_bits_per_element": keys.entropy_bits_per_element,
            "value_bits_per_element": values.entropy_bits_per_element,
        }

    return View(
        _title(result.run, measured.settings),
        columns,
        [row(la.layer, la.total, la.keys, la.values) for la in measured.layers],
        [row("total", measured.totals, measured.keys, measured.values)],
        [*_analysis_notes(result), _COUNTED],
    )


def _analysis_wide(result: Analysis) -> View:
    columns = (
        Column("layer", "layer"),
        Column("tensor", "tensor", left=True),
        Column("cache", "cache", left=True),
        Column("tokens", "tokens"),
        Column("bits", "bits"),
        Column("raw_bytes", "16-bit", si_bytes),
        _PARAMETERS,
        Column("fixed_bytes", "fixed", si_bytes),
        *_ESTIMATES,
        Column("delta", "delta", yes_no),
        Column("entropy_bytes", "entropy", si_bytes),
        Column("entropy_saving", "saving", percent),
        _BITS_PER_ELEMENT,
        _ERROR,
    )
    measured = result.measurement
    rows = [
        tensor.to_json()
        | {"layer": la.layer, "tensor": name, "cache": la.cache, "tokens": la.tokens}
        for la in measured.layers
        for name, tensor in (("keys", la.keys), ("values", la.values))
    ]
    blank = {"cache": "", "tokens": None, "bits": None, "delta": None}
    totals = [
        part.to_json() | blank | {"layer": "total", "tensor": name}
        for name, part in (
            ("keys", measured.keys), ("values", measured.values), ("both", measured.totals)
        )
    ]  # fmt: skip
    notes = [
        *_analysis_notes(result),
        _COUNTED,
        "raw or delta, chan or pool: estimate of the codes or of their token deltas, with one "
        "distribution a head and channel or one a head. rms error: relative to the 16-bit values.",
    ]
    return View(_title(result.run, measured.settings), columns, rows, totals, notes)


def _sweep(result: Sweep, wide: bool) -> View:
    columns = (
        Column("key_bits", "bits"),
        Column("group_size", "group"),
        *_BYTES,
        *((_PARAMETERS, *_ESTIMATES) if wide else ()),
        _BITS_PER_ELEMENT,
        _ERROR,
    )
    rows = [
        measured.totals.to_json()
        | {"key_bits": measured.settings.key_bits, "group_size": measured.settings.group_size}
        for measured in result.rows
    ]
    savings = [measured.totals.entropy_saving for measured in result.rows]
    return View(
        _title(result.run, result.rows[0].settings, grid=True),
        columns,
        rows,
        notes=[
            f"An ideal entropy coder with free tables saves {percent(min(savings))} to "
            f"{percent(max(savings))} of the fixed width; parameters are not touched.",
            *_skipped_notes(result.run),
            _COUNTED + " rms error: relative to the 16-bit values.",
        ],
    )


def _models(result: ModelList) -> View:
    columns = (
        Column("id", "model", left=True, folds=True),
        Column("layers", "layers", whole),
        Column("kv_heads", "heads", whole),
        Column("head_dim", "dim", whole),
        Column("bytes_per_token", "a token", si_bytes),
        Column("bytes_8k", "8k", si_bytes),
        Column("bytes_32k", "32k", si_bytes),
        Column("bytes_128k", "128k", si_bytes),
    )
    notes = [f"{m.id}: {m.problem}." for m in result.models if m.problem]
    if not result.models:
        notes = ["None is here: --model OWNER/NAME downloads one from Hugging Face."]
    notes += [
        f"{m.id} was made for {m.context} tokens at most."
        for m in result.models
        if m.context is not None and m.context < 128 * 1024
    ]
    return View(
        "The models on this machine and their KV caches in 16 bits",
        columns,
        [vars(m) for m in result.models],
        notes=[*notes, "k = 1,024 tokens. A sliding window stops growing when it is full."],
    )


def _title(run: Run, settings: Settings, grid: bool = False) -> str:
    model, prompt = run.model, run.prompt
    shape = f"{model.layers} layers x {whole(model.kv_heads)} KV heads x {whole(model.head_dim)}"
    parts = [
        f"{model.id} ({model.source}, {model.dtype})",
        f"{prompt.tokens} tokens ({prompt.source})",
        shape,
    ]
    if not grid:
        parts.append(
            f"K{settings.key_bits} V{settings.value_bits}, groups of {settings.group_size}"
        )
    if settings.schedule != "uniform":
        parts.append("fewer bits in deeper layers")
    return ", ".join(parts)


def _analysis_notes(result: Analysis) -> list[str]:
    measured = result.measurement
    totals = measured.totals
    fixed = si_bytes(totals.fixed_bytes)
    if totals.fixed_bytes > totals.raw_bytes:
        fixed += " (more than 16 bits: the groups are mostly padding)"
    return [
        f"16-bit {si_bytes(totals.raw_bytes)} -> fixed width {fixed} -> entropy "
        f"{si_bytes(totals.entropy_bytes)}: an ideal entropy coder saves "
        f"{percent(totals.entropy_saving)} of the fixed width; parameters, which it does not "
        f"touch, are {percent(totals.parameter_bytes / totals.entropy_bytes)} of what is left. "
        f"{_delta_sentence(measured)}",
        *_skipped_notes(result.run),
    ]


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


def _skipped_notes(run: Run) -> list[str]:
    return [
        f"Cache entry {s.entry} ({s.cache}, {si_bytes(s.bytes)}) is not in these figures: "
        f"{s.reason}."
        for s in run.skipped
    ]
