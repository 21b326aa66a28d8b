"""The columns and rows that several results share."""

from __future__ import annotations

from cachegen_cli.report.bars import NO_BARS, with_bars
from cachegen_cli.report.entries import named_tensors, place_header
from cachegen_cli.report.table import Column, Row
from cachegen_cli.report.units import bits, error, percent, si_bytes, whole
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.profile import ProfileInfo
from cachegen_cli.results.run import Run
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.sizes import Bytes
from cachegen_cli.results.spans import Places
from cachegen_cli.wording import counted


def yes_no(value: bool | None) -> str:
    """For a choice; "" where it does not apply."""
    return "" if value is None else "yes" if value else "no"


RAW = Column("raw_bytes", "16-bit", si_bytes, about="16-bit: 2 bytes an element.")
FIXED = Column(
    "fixed_bytes", "fixed", si_bytes,
    about="fixed: codes at their width (of codes of any size, the largest's) + parameters.",
)  # fmt: skip
ENTROPY = Column(
    "entropy_bytes", "entropy", si_bytes,
    about="entropy: Shannon estimate of the codes without probability tables + parameters.",
)  # fmt: skip
ENTROPY_SAVING = Column(
    "entropy_saving", "saving", percent, about="saving: what that takes off the fixed width."
)
CODED = Column(
    "coded_bytes", "coded", si_bytes,
    about="coded: what a file holds, payload + tables + parameters + headers.",
)  # fmt: skip
CODED_SAVING = Column(
    "coded_saving", "saving", percent,
    about="saving: what coding takes off the fixed width.",
)  # fmt: skip
CODED_BARS = (
    CODED,
    Column("coded_bar", "share", left=True, drawn=True),
    CODED_SAVING,
    Column("saving_bar", "", left=True, drawn=True),
)
BYTES = (
    RAW,
    FIXED,
    ENTROPY,
    ENTROPY_SAVING,
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
_ESTIMATES = (
    "raw or delta, chan or pool: estimate of the codes or of their token deltas, with one "
    "distribution a head and channel or one a head."
)
ESTIMATES = (
    Column("raw_channel_bytes", "raw/chan", si_bytes, about=_ESTIMATES),
    Column("raw_pooled_bytes", "raw/pool", si_bytes, about=_ESTIMATES),
    Column("delta_channel_bytes", "delta/chan", si_bytes, about=_ESTIMATES),
    Column("delta_pooled_bytes", "delta/pool", si_bytes, about=_ESTIMATES),
)
BITS_PER_ELEMENT = Column(
    "coded_bits_per_element", "bits/el", bits, about="bits/el: coded bytes an element, in bits."
)
_BOTH = "K bits/el, V bits/el: coded bytes an element of the keys and of the values, in bits."
ERROR = Column(
    "relative_rms_error", "rms error", error, about="rms error: relative to the 16-bit values."
)


def by_layer(
    measured: Measurement, run: Run | None = None
) -> tuple[list[Column], list[Row], list[Row]]:
    """Columns, rows and totals of keys and values together."""
    columns = [
        Column("layer", place_header(measured, run), names=True),
        *BYTES,
        Column("key_bits_per_element", "K bits/el", bits, about=_BOTH),
        Column("value_bits_per_element", "V bits/el", bits, about=_BOTH),
    ]

    def row(layer: Places | str, both: Bytes, keys: Bytes, values: Bytes) -> Row:
        return both.to_json() | {
            "layer": layer,
            "key_bits_per_element": keys.coded_bits_per_element,
            "value_bits_per_element": values.coded_bits_per_element,
        }

    rows = [row(la.places, la.total, la.keys, la.values) for la in measured.layers]
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
        ENTROPY,
        ENTROPY_SAVING,
        *PARTS,
        Column("kv_bits", "--kv-bits", _first_word, left=True),
        Column(
            "symbol_model",
            "model",
            left=True,
            about="model: what codes the tensor in the fewest bytes.",
        ),
        Column("coded_delta", "+d", yes_no, about="+d: whether it codes token deltas."),
        *CODED_BARS,
        BITS_PER_ELEMENT,
        ERROR,
    ]
    rows = [
        tensor.to_json()
        | {
            "layer": la.places,
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
    layers = counted(model.layers, "entry" if model.source == "file" else "layer")
    heads = "KV head" if model.kv_heads == 1 else "KV heads"
    shape = f"{layers} x {whole(model.kv_heads)} {heads} x {whole(model.head_dim)}"
    tokens = counted(prompt.tokens, "token")
    if prompt.continuation_tokens:
        tokens = f"{prompt.tokens:,} + {counted(prompt.continuation_tokens, 'token')}"
    parts = [
        f"{model.id} ({model.source}, {model.dtype})",
        f"{tokens} ({prompt.source})",
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
        parts.append(f"tokens kept: first {settings.keep_first}, last {settings.keep_last}")
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
        f"{stored.entries} of {counted(stored.of, 'cache entry')} are quantized already "
        f"({stored.codes}). Their own codes are measured, whatever was asked for.{against} What "
        "they were before is not in the cache."
    ]


def profile_notes(settings: Settings) -> list[str]:
    """The profile that a scheme used, if it did."""
    return [profile_sentence(settings.profile)] if settings.profile else []


def profile_sentence(info: ProfileInfo) -> str:
    """Where a profile is, what it was made from, and that its bytes are counted nowhere."""
    return (
        f"Profile {info.file}: {si_bytes(info.profile_bytes)}, kept once for the model and in no "
        f"size here; calibrated on {counted(info.tokens, 'token')} of "
        f"{counted(info.texts, 'text')}."
    )


def held_tokens(n: int) -> str:
    """Return how many token ids a file holds, as a sentence."""
    return f"{counted(n, 'token id') if n else 'No token ids'} in it."


def skipped_notes(run: Run) -> list[str]:
    """A sentence for each cache entry that is not in the figures."""
    return [
        f"Cache entry {s.entry} ({s.cache}, {si_bytes(s.bytes)}) is not in these figures: "
        f"{s.reason}."
        for s in run.skipped
    ]
