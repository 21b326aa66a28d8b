"""What is shown of schemes side by side."""

from __future__ import annotations

from cachegen_cli.report.columns import (
    profile_sentence,
    skipped_notes,
    stored_notes,
    title_of,
    yes_no,
)
from cachegen_cli.report.plot import Point, scatter
from cachegen_cli.report.qualities import ALL, DEFINED, KL
from cachegen_cli.report.table import Column, Row, View
from cachegen_cli.report.units import bits, error, percent, rough, si_bytes, times
from cachegen_cli.results.comparison import Comparison, Standing, curve_of
from cachegen_cli.results.settings import Settings


def comparison_view(result: Comparison, wide: bool) -> View:
    """A row a scheme at the target; at the foot every setting that was measured."""
    has_group = wide or "group" in result.schemes
    columns = (
        Column("scheme", "scheme", left=True, folds=True, names=True),
        Column("coded_bytes", "coded", si_bytes),
        Column("coded_bits_per_element", "bits/el", bits),
        *((Column("stderr", "± of target", rough),) if wide else ()),
        Column("ratio_to_raw", "x16-bit", times),
        Column("ratio_to_mlx", "xmlx4", times),
        *((Column("ratio_to_group", "xgroup", times),) if has_group else ()),
        *(ALL if wide else KL),
        *((Column("extrapolated", "out", yes_no),) if wide else ()),
    )
    blank: Row = dict.fromkeys(column.key for column in columns) | dict.fromkeys(
        column.key for column in ALL
    )
    rows = [blank | _standing_row(result, one) for one in result.standings]
    points = [
        blank
        | point.quality.to_json()
        | {
            "scheme": point.name,
            "coded_bytes": point.coded_bytes,
            "coded_bits_per_element": point.coded_bits_per_element,
        }
        | _ratios(result, point.coded_bits_per_element)
        for point in result.points
    ]
    where = (
        f"{result.target.value:g} coded bits an element"
        if result.at_bits
        else f"KL {result.target.value:.3g} nats"
    )
    shared = Settings(stored=result.points[0].settings.stored)
    notes = [
        _winner(result, where),
        f"Above: where each scheme's curve meets {where}, straight between measured points in bits "
        "against log KL, with the standard error of what is read off. ~: beyond the measured "
        "points, so a guess. Below: the points, with their bits, bins or error. x16-bit, "
        "xmlx4, xgroup: how many times smaller than 16 bits, than mlx-lm's 4-bit cache as it is "
        "stored, and than the seed's groups at the same place of their curve.",
        *_out_of_reach(result, where),
        *_profiles(result),
        *stored_notes(shared),
        DEFINED,
        *skipped_notes(result.run),
    ]
    marks = "abcdefghij"
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
    return View(title_of(result.run, shared, grid=True), columns, rows, points, notes, drawing)


def _out_of_reach(result: Comparison, where: str) -> list[str]:
    """Which schemes are not in the table."""
    names = result.out_of_reach
    return [f"Too far from {where} to be read off: {', '.join(names)}."] if names else []


def _profiles(result: Comparison) -> list[str]:
    """What the profile takes beside the streams, and from when on it pays."""
    used = [found for point in result.points if (found := point.settings.profile)]
    if not used:
        return []
    pays = [
        f"{one.scheme} never pays for it here"
        if tokens is None
        else f"{one.scheme} pays for it from {tokens:,} tokens on"
        for one in result.standings
        if result.profile_of(one)
        for tokens in [result.profile_pays_tokens(one)]
    ]
    against = f" Against the best scheme without one, {', '.join(pays)}." if pays else ""
    return [profile_sentence(used[0]) + against]


def _standing_row(result: Comparison, one: Standing) -> Row:
    kl_stderr = one.stderr if result.at_bits else None
    return (
        {
            "scheme": one.scheme + (" ~" if one.extrapolated else ""),
            "coded_bytes": result.bytes_at(one),
            "coded_bits_per_element": one.coded_bits_per_element,
            "kl_nats": one.kl_nats,
            "kl_nats_stderr": kl_stderr,
            "stderr": one.stderr,
            "extrapolated": one.extrapolated or None,
        }
        | _ratios(result, one.coded_bits_per_element)
        | {"ratio_to_group": _to_group(result, one)}
    )


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
        return (
            f"At {where} no scheme is the winner: {best.scheme} comes first, but within two "
            "standard errors of another, or beyond what was measured."
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
