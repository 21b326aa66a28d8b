"""What is shown of schemes side by side."""

from __future__ import annotations

from string import ascii_letters

from cachegen_cli.report.columns import (
    BITS_PER_ELEMENT,
    CODED,
    profile_sentence,
    skipped_notes,
    stored_notes,
    title_of,
)
from cachegen_cli.report.plot import Point, scatter
from cachegen_cli.report.qualities import ALL, KL, MARGIN
from cachegen_cli.report.table import Column, Row, View
from cachegen_cli.report.units import bits, error, percent, plus_minus, rough, times
from cachegen_cli.results.candidates import Candidate
from cachegen_cli.results.comparison import (
    NEAR_BITS,
    NEAR_KL,
    Comparison,
    Floor,
    Standing,
    curve_of,
)
from cachegen_cli.results.quality import margin
from cachegen_cli.results.settings import Settings
from cachegen_cli.wording import counted

_TO_GROUP = "xgroup: than the seed's groups at the target."


def comparison_view(result: Comparison, wide: bool) -> View:
    """Show a row a scheme at the target; at the foot every setting that was measured."""
    where = _where(result)
    columns = (
        Column("setting", "nearest setting", left=True, folds=True, names=True),
        *((Column("scheme", "scheme", left=True), CODED) if wide else ()),
        BITS_PER_ELEMENT,
        *(ALL if wide else KL[:1]),
        Column(
            "at_target", "at target", error if result.at_bits else bits,
            about=f"at target: the {'KL' if result.at_bits else 'bits an element'} read off at "
            f"exactly {where} from the settings near it, straight in bits against log KL.",
        ),
        Column(
            "margin", "±", rough, about=MARGIN
        ),
        *((Column("low", "low", error), Column("high", "high", error)) if wide else ()),
        Column(
            "ratio_to_raw", "x16-bit", times, about="x16-bit: how many times smaller than 16 bits."
        ),
        Column(
            "ratio_to_mlx", "xmlx4", times,
            about="xmlx4: than mlx-lm's 4-bit cache as it is stored.",
        ),
        *((Column("ratio_to_group", "xgroup", times, about=_TO_GROUP),) if wide else ()),
        *((Column("read_from", "read off from", left=True),) if wide else ()),
    )  # fmt: skip
    blank: Row = dict.fromkeys(column.key for column in columns)
    rows = [blank | _standing_row(result, one) for one in result.standings]
    points = [blank | _point_row(point) for point in result.points]
    shared = Settings(stored=result.points[0].settings.stored)
    notes = [
        _winner(result, where),
        *_target(result),
        *_by_itself(result),
        "Above, by scheme: the measured setting nearest to the target, with its own figures. "
        "Below: every setting that was measured.",
        *_far(result, where),
        *(f"{one.scheme} does not meet {where}: {one.reason}." for one in result.out_of_reach),
        *(_floor(one) for one in result.floors),
        *_profiles(result),
        *stored_notes(shared),
        *skipped_notes(result.run),
    ]
    marks = ascii_letters
    drawing = scatter(
        [
            Point(p.coded_bits_per_element, p.quality.kl_nats, marks[result.schemes.index(name)])
            for name in result.schemes
            for p in result.points
            if curve_of(p) == name
        ],
        "coded bits an element",
        "KL in nats. " + ", ".join(f"{marks[i]}: {n}" for i, n in enumerate(result.schemes)),
    )
    title = title_of(result.run, shared, grid=True)
    answers = rows[:1] if result.winner else rows
    return View(title, columns, rows, points, notes, drawing, answers)


def _where(result: Comparison) -> str:
    """Name the target."""
    if result.at_bits:
        return f"{result.target.value:g} coded bits an element"
    return f"KL {result.target.value:.3g} nats"


def _target(result: Comparison) -> list[str]:
    """Say where a target that was measured comes from."""
    if not result.target_setting:
        return []
    [point] = [p for p in result.points if p.name == result.target_setting]
    return [
        f"The target is the KL of {point.name} on the same text, "
        f"{plus_minus(point.quality.kl_nats, point.quality.kl_nats_margin)}; both change together "
        "in the intervals."
    ]


def _by_itself(result: Comparison) -> list[str]:
    """Say how a row is measured alone."""
    if not result.standings:
        return []
    arguments = result.nearest(result.standings[0]).settings.arguments
    return [f"The first row by itself, on the same text: cachegen quality {arguments}"]


def _far(result: Comparison, where: str) -> list[str]:
    """Name the schemes that have no setting near the target."""
    names = [
        f"{one.scheme} ({' and '.join(one.read_from)})"
        for one in result.standings
        if not _is_near(result, one)
    ]
    return (
        [f"No setting near {where}, so read off farther apart: {', '.join(names)}."]
        if names
        else []
    )


def _is_near(result: Comparison, one: Standing) -> bool:
    """Return whether a setting on either side of the target is near it."""
    points = [p for p in result.points if p.name in one.read_from]
    target = result.target.value
    beyond = (
        [(p.coded_bits_per_element - target) / NEAR_BITS for p in points]
        if result.at_bits
        else [(p.quality.kl_nats / target - 1) / NEAR_KL for p in points]
    )
    return any(0 <= x <= 1 for x in beyond) and any(-1 <= x <= 0 for x in beyond)


def _floor(one: Floor) -> str:
    interval = plus_minus(one.kl_nats, margin(one.kl_nats_low, one.kl_nats_high))
    return (
        f"Floor of {one.scheme} on these texts: KL {interval} at any step, by the components that "
        "its profile leaves out and the 8 bits of its vectors."
    )


def _profiles(result: Comparison) -> list[str]:
    """What the profile takes beside the streams, and from when on it pays."""
    used = [found for point in result.points if (found := point.settings.profile)]
    if not used:
        return []
    pays = [
        f"{one.scheme} never pays for it here"
        if tokens is None
        else f"{one.scheme} pays for it from {counted(tokens, 'token')} on"
        for one in result.standings
        if result.profile_of(one)
        for tokens in [result.profile_pays_tokens(one)]
    ]
    best = result.best_without_profile
    against = f" Against {best.scheme}, {', '.join(pays)}." if pays and best else ""
    return [profile_sentence(used[0]) + against]


def _standing_row(result: Comparison, one: Standing) -> Row:
    value = one.kl_nats if result.at_bits else one.coded_bits_per_element
    return (
        _point_row(result.nearest(one))
        | {
            "scheme": one.scheme,
            "at_target": value,
            "margin": one.margin,
            "low": one.low,
            "high": one.high,
            "read_from": " | ".join(one.read_from),
            "ratio_to_group": _to_group(result, one),
        }
        | _ratios(result, one.coded_bits_per_element)
    )


def _point_row(point: Candidate) -> Row:
    return point.quality.to_json() | {
        "setting": point.name,
        "scheme": curve_of(point),
        "coded_bytes": point.coded_bytes,
        "coded_bits_per_element": point.coded_bits_per_element,
    }


def _ratios(result: Comparison, bits_per_element: float) -> Row:
    mlx = result.mlx_bits_per_element
    return {
        "ratio_to_raw": 16 / bits_per_element,
        "ratio_to_mlx": mlx / bits_per_element if mlx else None,
    }


def _to_group(result: Comparison, one: Standing) -> float | None:
    seed = [other for other in result.standings if other.scheme == "group"]
    return seed[0].coded_bits_per_element / one.coded_bits_per_element if seed else None


def _winner(result: Comparison, where: str) -> str:
    ranked = result.standings
    if len(ranked) < 2:
        return f"There are not two schemes with a curve to compare at {where}."
    best, second = ranked[:2]
    if result.winner is None:
        level = [one.scheme for one in ranked[1:] if one.scheme not in best.beats]
        return (
            f"At {where} no scheme is the winner: {best.scheme} comes first, but not beyond the "
            f"error before {', '.join(level)}."
        )
    if result.at_bits:
        return (
            f"At {where} {best.scheme} loses least: KL {error(best.kl_nats)}, "
            f"{percent(1 - best.kl_nats / second.kl_nats)} less than {second.scheme}."
        )
    return (
        f"At {where} {best.scheme} is smallest: {bits(best.coded_bits_per_element)} bits an "
        "element, "
        f"{percent(1 - best.coded_bits_per_element / second.coded_bits_per_element)} less than "
        f"{second.scheme} ({bits(second.coded_bits_per_element)})."
    )
