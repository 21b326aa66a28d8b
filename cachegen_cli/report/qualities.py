"""What is shown of quality and of sensitivity."""

from __future__ import annotations

from cachegen_cli.report.bars import bar
from cachegen_cli.report.columns import (
    BITS_PER_ELEMENT,
    CODED,
    CODED_SAVING,
    FIXED,
    RAW,
    profile_notes,
    skipped_notes,
    stored_notes,
    title_of,
)
from cachegen_cli.report.entries import spread_notes
from cachegen_cli.report.table import Column, Row, View
from cachegen_cli.report.units import error, percent, perplexity, plus_minus, rough, si_bytes
from cachegen_cli.results.analyses import QualityAnalysis
from cachegen_cli.results.planning import Sensitivity
from cachegen_cli.results.quality import LARGEST, Quality
from cachegen_cli.results.sizes import Bytes
from cachegen_cli.wording import counted

_BAR = 24  # columns of the longest bar

MARGIN = "±: half of the 95 % interval, from resampling blocks of neighbouring positions."
KL = (
    Column(
        "kl_nats", "KL nats", error,
        about="KL: mean over positions of the continuation of KL(untouched || compressed) over the "
        "next token. Only the context's cache is compressed: the model reads the continuation "
        "after it in full precision.",
    ),
    Column("kl_nats_margin", "±", rough, about=MARGIN),
)  # fmt: skip
PERPLEXITY_DIFFERENCE = Column(
    "perplexity_difference", "Δ ppl", error,
    about="Δ ppl: perplexity less that after the untouched cache.",
)  # fmt: skip
TOP1 = Column(
    "top1_agreement", "top-1", percent,
    about="top-1: positions with the same most likely token.",
)  # fmt: skip
REST = (
    Column("kl_nats_median", "KL median", error),
    Column("kl_nats_p99", "KL p99", error),
    Column("kl_share_of_largest", f"largest {LARGEST}", percent),
    Column("reference_perplexity", "ref ppl", perplexity),
    Column("reference_perplexity_margin", "±", rough),
    Column("perplexity", "ppl", perplexity),
    Column("perplexity_margin", "±", rough),
    Column("log_likelihood_difference_nats", "Δ log-lik", error),
    Column("log_likelihood_difference_nats_margin", "±", rough),
    Column("top1_agreement_margin", "± top-1", rough),
)
ALL = (*KL, PERPLEXITY_DIFFERENCE, TOP1, *REST)
SCORED = (Column("positions", "read"), Column("scored_tokens", "scored"))
BLANK = dict.fromkeys(column.key for column in (*ALL, *SCORED))


def quality_sentence(found: Quality) -> str:
    """All figures of one setting."""
    figures = found.to_json()
    agreement = plus_minus(100 * found.top1_agreement, _times_100(figures["top1_agreement_margin"]))
    change = plus_minus(
        found.log_likelihood_difference_nats, figures["log_likelihood_difference_nats_margin"]
    )
    held = found.kl_share_of_largest
    largest = "" if held is None else f", the largest {LARGEST} hold {percent(held)} of the sum"
    return (
        f"Quality over {counted(found.positions, 'position')}: KL "
        f"{plus_minus(found.kl_nats, found.kl_nats_margin)} nats, median "
        f"{error(found.kl_nats_median)}, 99th percentile {error(found.kl_nats_p99)}{largest}; "
        f"perplexity {perplexity(found.reference_perplexity)} -> {perplexity(found.perplexity)}, "
        f"log-likelihood {change} nats a token; the same most likely token at {agreement} % of "
        "positions."
    )


def quality_view(result: QualityAnalysis, wide: bool) -> View:
    """A row a text."""
    measured, prompt = result.measurement, result.run.prompt
    columns = (
        Column("text", "text", left=True, folds=True, names=True),
        Column("tokens", "context"),
        *((*SCORED, RAW, FIXED) if wide else ()),
        CODED,
        *((CODED_SAVING,) if wide else ()),
        BITS_PER_ELEMENT,
        *(ALL if wide else (*KL, PERPLEXITY_DIFFERENCE, TOP1)),
    )
    everything = text_row("all texts", prompt.tokens, measured.totals, measured.quality)
    rows = [
        text_row(text.prompt.source, text.prompt.tokens, text.totals, text.quality)
        for text in measured.texts
    ]
    notes = [
        *spread_notes(measured),
        *stored_notes(measured.settings),
        *profile_notes(measured.settings),
        *skipped_notes(result.run),
    ]
    if measured.quality:
        notes.insert(0, quality_sentence(measured.quality) + _size_sentence(measured.totals))
    title, totals = title_of(result.run, measured.settings), [everything]
    if not rows:
        rows, totals = [everything | {"text": prompt.source}], []
    return View(title, columns, rows, totals, notes, answers=totals or rows)


def sensitivity_view(result: Sensitivity, wide: bool) -> View:
    """A row a tensor with a bar."""
    columns = (
        Column("layer", "layer", names=True),
        Column("tensor", "tensor", left=True, names=True),
        *((Column("cache", "cache", left=True),) if wide else ()),
        *KL,
        Column("bar", "", left=True, drawn=True),
    )
    largest = max(row.kl_nats for row in result.rows)
    rows = [
        vars(row)
        | {"kl_nats_margin": row.kl_nats_margin, "layer": row.places}
        | {"bar": bar(row.kl_nats, largest, _BAR)}
        for row in result.rows
    ]
    blank = {"cache": "", "bar": "", "kl_nats_margin": None}
    totals = [
        blank | {"layer": "sum", "tensor": "both", "kl_nats": result.sum_kl_nats},
        blank | {"layer": "all", "tensor": "both"}
        | {key: getattr(result.together, key) for key in ("kl_nats", "kl_nats_margin")},
    ]  # fmt: skip
    notes = [
        _depth_sentence(result),
        "Each row: KL (nats) with that tensor alone compressed. sum: of all rows; all: measured "
        "with everything compressed at once. If effects added up, both would be equal.",
        *stored_notes(result.settings),
        *profile_notes(result.settings),
        *skipped_notes(result.run),
    ]
    title = title_of(result.run, result.settings)
    answers = [row for row in rows if row["kl_nats"] == largest]
    return View(title, columns, rows, totals, notes, answers=answers)


def text_row(text: str, tokens: int, totals: Bytes, quality: Quality | None) -> Row:
    """Return sizes and quality as cells."""
    figures = quality.to_json() if quality else BLANK
    return totals.to_json() | figures | {"text": text, "tokens": tokens}


def _size_sentence(totals: Bytes) -> str:
    return (
        f" The cache takes {si_bytes(totals.raw_bytes)} in 16 bits, {si_bytes(totals.fixed_bytes)} "
        f"at fixed width and {si_bytes(totals.coded_bytes)} coded."
    )


def _depth_sentence(result: Sensitivity) -> str:
    """Whether the paper's second observation holds."""
    found, needed = result.depth_correlation, result.depth_correlation_needed
    if found is None or needed is None:
        return "There are too few layers to say whether shallow ones are more sensitive."
    keys, values = result.key_depth_correlation, result.value_depth_correlation
    parts = ", ".join(
        f"{name} {correlation:+.2f}"
        for name, correlation in (("keys", keys), ("values", values))
        if correlation is not None
    )
    third = max(1, len(result.by_layer) // 3)
    first, last = sum(result.by_layer[:third]), sum(result.by_layer[-third:])
    if found <= -needed:
        verdict = "Shallow layers are more sensitive in this model, as CacheGen's paper observes"
    elif found >= needed:
        verdict = (
            "Shallow layers are not more sensitive in this model, deep ones are: the reverse of "
            "what CacheGen's paper observes, so --schedule depth saves in the wrong place"
        )
    else:
        verdict = (
            "That shallow layers are more sensitive, as CacheGen's paper observes, does not show "
            "in this model"
        )
    return (
        f"{verdict}: rank correlation of KL with depth {found:+.2f} ({parts}; beyond ±{needed:.2f} "
        f"it is unlikely to be chance). The first third of the layers adds up to "
        f"{error(first)}, the last third to {error(last)} nats."
    )


def _times_100(value: float | None) -> float | None:
    return None if value is None else 100 * value
