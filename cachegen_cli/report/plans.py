"""What is shown of plans."""

from __future__ import annotations

from collections.abc import Sequence

from cachegen_cli.report.columns import (
    BITS_PER_ELEMENT,
    CODED,
    skipped_notes,
    stored_notes,
    title_of,
)
from cachegen_cli.report.qualities import ALL, BLANK, KL, text_row
from cachegen_cli.report.table import Column, Row, View
from cachegen_cli.report.units import bits, error, percent, plus_minus, rough, si_bytes
from cachegen_cli.results.planning import Plan, TensorSensitivity
from cachegen_cli.results.sizes import LayerResult
from cachegen_cli.wording import counted


def plan_view(result: Plan, wide: bool) -> View:
    """A row a layer; at the foot the plan beside what else takes its bytes."""
    alone_about = (
        "K alone, V alone: KL (nats) with that tensor alone at "
        f"{counted(result.sensitivity_bits, 'bit')}."
    )
    columns = (
        Column("layer", "layer", names=True),
        Column("key_bits", "K bits"),
        Column("value_bits", "V bits"),
        CODED,
        BITS_PER_ELEMENT,
        Column("key_kl_nats", "K alone", rough, about=alone_about),
        Column("value_kl_nats", "V alone", rough, about=alone_about),
        *(ALL if wide else KL),
    )
    alone = result.sensitivities
    nothing: Row = dict.fromkeys(("key_bits", "value_bits", "key_kl_nats", "value_kl_nats"))
    rows = [
        nothing | BLANK | layer.total.to_json() | {"layer": layer.places}
        | _chosen(layer, alone[2 * place : 2 * place + 2])
        for place, layer in enumerate(result.measurement.layers)
    ]  # fmt: skip
    measured = result.measurement
    totals = [nothing | text_row("", 0, measured.totals, measured.quality) | {"layer": "plan"}]
    totals += [
        nothing
        | one.quality.to_json()
        | {
            "layer": one.name,
            "coded_bytes": one.coded_bytes,
            "coded_bits_per_element": one.coded_bits_per_element,
        }
        for one in (*result.uniform, *([result.depth] if result.depth else []))
    ]
    notes = [
        _verdict(result),
        f"Found with {counted(result.continuations, 'reading')} of the continuation."
        + (
            f" Its tensors alone promised a KL of {error(result.predicted_kl_nats)} together."
            if alone
            else ""
        ),
        "It was fitted to these texts: try it on others with cachegen quality --schedule FILE.",
        *stored_notes(measured.settings),
        *skipped_notes(result.run),
    ]
    title = title_of(result.run, measured.settings)
    return View(title, columns, rows, totals, notes, answers=[_answer(result, totals)])


def _chosen(layer: LayerResult, alone: Sequence[TensorSensitivity]) -> Row:
    """Return the widths of a layer and what they cost alone; nothing of codes of its own."""
    if layer.stored:
        return {}
    kls = {f"{row.tensor.removesuffix('s')}_kl_nats": row.kl_nats for row in alone}
    return {"key_bits": layer.keys.bits, "value_bits": layer.values.bits} | kls


def _answer(result: Plan, totals: Sequence[Row]) -> Row:
    """Return the row to take: the plan's, or that of the width that it does not beat."""
    rival = result.rival
    name = rival.name if rival and not rival.is_beaten else "plan"
    return next(row for row in totals if row["layer"] == name)


def _rival(result: Plan) -> str:
    """Say whether the plan beats uniform widths at its bytes, beyond the error."""
    rival = result.rival
    if rival is None:
        return "All uniform widths of the choices take more bytes than the plan."
    if len({*result.key_bits, *result.value_bits}) == 1:
        return f"The plan is {rival.name}: no mix of widths that was measured was better."
    of_theirs = f"its KL is {percent(rival.kl_ratio)} of theirs"
    if rival.low is not None and rival.high is not None:
        of_theirs += f" (95 % interval {percent(rival.low)} to {percent(rival.high)})"
    if rival.is_beaten:
        return f"The plan is better than uniform widths at its bytes: {of_theirs}."
    [width] = [one for one in result.uniform if one.name == rival.name]
    return (
        f"The plan is not better than uniform widths at its bytes beyond the error: {of_theirs}. "
        f"Take {rival.name}: {si_bytes(width.coded_bytes)} at KL {error(width.quality.kl_nats)}."
    )


def _verdict(result: Plan) -> str:
    """The plan against its target, the best uniform width and the depth schedule."""
    totals, quality = result.measurement.totals, result.measurement.quality
    if quality is None:
        return ""
    target = {
        "kl_nats": f"KL of at most {result.target.value:g} nats",
        "coded_bytes": f"at most {result.target.value:.0f} coded bytes",
        "coded_bits_per_element": f"at most {result.target.value:g} bits an element",
    }[result.target.figure]
    parts = [
        _rival(result),
        f"Target: {target}. The plan takes {si_bytes(totals.coded_bytes)}, "
        f"{bits(totals.coded_bits_per_element)} bits an element, at KL "
        f"{plus_minus(quality.kl_nats, quality.kl_nats_margin)}.",
    ]
    if (depth := result.depth) is not None:
        parts.append(
            f"In these bytes (at most 1 % more) the depth schedule is {depth.name}: "
            f"{bits(depth.coded_bits_per_element)} bits an element, KL "
            f"{plus_minus(depth.quality.kl_nats, depth.quality.kl_nats_margin)}."
        )
    holding = [o for o in result.uniform if o.quality.kl_nats <= result.target.value]
    first = min(holding, key=lambda o: o.coded_bytes, default=None)
    size = totals.coded_bytes or 0
    if result.target.figure == "kl_nats" and first and first.coded_bytes > size:
        parts.append(
            f"The smallest uniform width that holds the target is {first.name}; the plan takes "
            f"{percent(1 - size / first.coded_bytes)} less."
        )
    return " ".join(parts)
