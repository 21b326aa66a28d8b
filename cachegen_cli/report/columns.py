"""The columns and rows that several results share."""

from __future__ import annotations

from typing import Any

from cachegen_cli.report.bars import NO_BARS, with_bars
from cachegen_cli.report.entries import named_tensors, place_header
from cachegen_cli.report.table import Column, Row
from cachegen_cli.report.units import bits, error, percent, si_bytes, whole
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.profile import ProfileInfo
from cachegen_cli.results.run import Run
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.sizes import Bytes


def yes_no(value: bool | None) -> str:
    """For a choice; "" where it does not apply."""
    return "" if value is None else "yes" if value else "no"


RAW = Column("raw_bytes", "16-bit", si_bytes)
FIXED = Column("fixed_bytes", "fixed", si_bytes)
CODED = Column("coded_bytes", "coded", si_bytes)
CODED_SAVING = Column("coded_saving", "saving", percent)
CODED_BARS = (
    CODED,
    Column("coded_bar", "share", left=True, drawn=True),
    CODED_SAVING,
    Column("saving_bar", "", left=True, drawn=True),
)
BYTES = (
    RAW,
    FIXED,
    Column("entropy_bytes", "entropy", si_bytes),
    Column("entropy_saving", "saving", percent),
    CODED,
    CODED_SAVING,
)
PARTS = (
    Column("payload_bytes", "payload", si_bytes),
    Column("table_bytes", "tables", si_bytes),
    Column("parameter_bytes", "params", si_bytes),
    Column("header_bytes", "header", si_bytes),
    Column("kept_bytes", "kept", si_bytes),
    Column("shipped_bytes", "shipped", si_bytes),
)
ESTIMATES = (
    Column("raw_channel_bytes", "raw/chan", si_bytes),
    Column("raw_pooled_bytes", "raw/pool", si_bytes),
    Column("delta_channel_bytes", "delta/chan", si_bytes),
    Column("delta_pooled_bytes", "delta/pool", si_bytes),
)
BITS_PER_ELEMENT = Column("coded_bits_per_element", "bits/el", bits)
ERROR = Column("relative_rms_error", "rms error", error)
COUNTED = (
    "16-bit: 2 bytes an element. fixed: codes at their width + parameters. entropy: Shannon "
    "estimate of the codes without probability tables + parameters. coded: what a file holds, "
    "payload + tables + parameters + headers. saving: 1 - entropy/fixed and 1 - coded/fixed. "
    "bits/el: coded bytes an element, in bits."
)
COUNTED_CODED = (
    "coded: what a file holds, payload + tables + parameters + headers. saving: 1 - coded/fixed, "
    "the codes at their width + parameters. bits/el: coded bytes an element, in bits."
)
PARTS_COUNTED = (
    "raw or delta, chan or pool: estimate of the codes or of their token deltas, with one "
    "distribution a head and channel or one a head. model: what codes the tensor in the fewest "
    "bytes, +d on token deltas. rms error: relative to the 16-bit values."
)


def by_layer(
    measured: Measurement, run: Run | None = None
) -> tuple[list[Column], list[Row], list[Row]]:
    """Columns, rows and totals of keys and values together."""
    columns = [
        Column("layer", place_header(measured, run), names=True),
        *BYTES,
        Column("key_bits_per_element", "K bits/el", bits),
        Column("value_bits_per_element", "V bits/el", bits),
    ]

    def row(label: Any, both: Bytes, keys: Bytes, values: Bytes) -> Row:
        return both.to_json() | {
            "layer": label,
            "key_bits_per_element": keys.coded_bits_per_element,
            "value_bits_per_element": values.coded_bits_per_element,
        }

    rows = [row(la.label, la.total, la.keys, la.values) for la in measured.layers]
    return columns, rows, [row("total", measured.totals, measured.keys, measured.values)]


def by_tensor(
    measured: Measurement, run: Run | None = None
) -> tuple[list[Column], list[Row], list[Row]]:
    """Columns, rows and totals of every tensor, with all that is known of it."""
    columns = [
        Column("layer", place_header(measured, run), names=True),
        Column("tensor", "tensor", left=True, names=True),
        Column("cache", "cache", left=True),
        Column("tokens", "tokens"),
        Column("tokens_seen", "seen"),
        Column("tokens_allocated", "alloc"),
        Column("bits", "bits"),
        RAW,
        FIXED,
        *ESTIMATES,
        Column("delta", "delta", yes_no),
        Column("entropy_bytes", "entropy", si_bytes),
        Column("entropy_saving", "saving", percent),
        *PARTS,
        Column("kv_bits", "--kv-bits", _first_word, left=True),
        Column("symbol_model", "model", left=True),
        Column("coded_delta", "+d", yes_no),
        *CODED_BARS,
        BITS_PER_ELEMENT,
        ERROR,
    ]
    rows = [
        tensor.to_json()
        | {
            "layer": la.label,
            "tensor": name,
            "cache": la.cache,
            "tokens": la.tokens,
            "tokens_seen": la.tokens_seen,
            "tokens_allocated": la.tokens_allocated,
            "kv_bits": la.kv_bits,
        }
        for la, name, tensor in named_tensors(measured)
    ]
    rows = with_bars(rows)
    nothing = ("tokens", "tokens_seen", "tokens_allocated", "bits", "delta", "kv_bits")
    blank = dict.fromkeys((*nothing, "symbol_model", "coded_delta")) | NO_BARS
    totals = [
        part.to_json() | blank | {"layer": "total", "tensor": name, "cache": ""}
        for name, part in (
            ("keys", measured.keys), ("values", measured.values), ("both", measured.totals)
        )
    ]  # fmt: skip
    return columns, rows, totals


def _first_word(text: str | None) -> str:
    return (text or "").partition(":")[0]


def title_of(run: Run, settings: Settings, grid: bool = False) -> str:
    """Model, prompt and settings; without the widths where rows have their own."""
    model, prompt = run.model, run.prompt
    if model.source == "file":
        layers = f"{model.layers} entr" + ("ies" if model.layers != 1 else "y")
    else:
        layers = f"{model.layers} layer" + ("s" if model.layers != 1 else "")
    shape = f"{layers} x {whole(model.kv_heads)} KV heads x {whole(model.head_dim)}"
    read_on = f" + {prompt.continuation_tokens}" if prompt.continuation_tokens else ""
    parts = [
        f"{model.id} ({model.source}, {model.dtype})",
        f"{prompt.tokens}{read_on} tokens ({prompt.source})",
        shape,
    ]
    return ", ".join([*parts, *_settings_parts(settings, grid)])


def settings_of(settings: Settings) -> str:
    """Widths, groups and what is not as usual."""
    return ", ".join(_settings_parts(settings))


def _settings_parts(settings: Settings, grid: bool = False) -> list[str]:
    parts = settings.parts("" if grid else _widths(settings))
    if settings.schedule == "depth":
        parts.append("fewer bits in deeper layers")
    if settings.keep_first or settings.keep_last:
        parts.append(f"first {settings.keep_first} and last {settings.keep_last} tokens kept")
    return parts


def _widths(settings: Settings) -> str:
    plan = settings.plan
    if plan is None:
        return f"K{settings.key_bits} V{settings.value_bits}"
    keys, values = whole(list(plan.key_bits)), whole(list(plan.value_bits))
    return f"widths of {plan.source or 'the plan'} (K{keys} V{values})"


def stored_notes(settings: Settings, quality: bool = True) -> list[str]:
    """Say what is measured of entries that were quantized already, and quality against what."""
    stored = settings.stored
    if stored is None:
        return []
    against = " KL is against the cache as it is, already quantized." if quality else ""
    return [
        f"{stored.entries} of {stored.of} cache entries are quantized already ({stored.codes}). "
        f"Their own codes are measured, whatever was asked for.{against} What they were before is "
        "not in the cache."
    ]


def profile_notes(settings: Settings) -> list[str]:
    """The profile that a scheme used, if it did."""
    return [profile_sentence(settings.profile)] if settings.profile else []


def profile_sentence(info: ProfileInfo) -> str:
    """Where a profile is, what it was made from, and that its bytes are counted nowhere."""
    return (
        f"Profile {info.file}: {si_bytes(info.profile_bytes)}, kept once for the model and in no "
        f"size here; calibrated on {info.tokens:,} tokens of {info.texts:,} text"
        + ("s." if info.texts != 1 else ".")
    )


def skipped_notes(run: Run) -> list[str]:
    """A sentence for each cache entry that is not in the figures."""
    return [
        f"Cache entry {s.entry} ({s.cache}, {si_bytes(s.bytes)}) is not in these figures: "
        f"{s.reason}."
        for s in run.skipped
    ]
