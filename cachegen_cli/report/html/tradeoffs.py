"""Charts of size against loss."""

from __future__ import annotations

from collections.abc import Sequence

from cachegen_cli.report.html.charts import Bar, Dot, bars, curves
from cachegen_cli.report.html.layers import PARTS, parts_of
from cachegen_cli.report.html.panels import Headline, Panel, Shown, loss, sizes
from cachegen_cli.report.html.tables import table
from cachegen_cli.report.units import bits, error, percent, rough, si_bytes
from cachegen_cli.results.analyses import Sweep, pareto
from cachegen_cli.results.candidates import Candidate
from cachegen_cli.results.comparison import Comparison, curve_of
from cachegen_cli.results.planning import Plan
from cachegen_cli.results.settings import Settings
from cachegen_cli.wording import counted

_BITS, _KL = "coded bits an element", "KL in nats (logarithmic)"
_BEST = "Full points: no other has both fewer bits and less loss."


def sweep_panels(result: Sweep) -> Shown:
    """The rate-distortion curve, and what bytes are spent on in each setting."""
    totals = [row.totals for row in result.rows]
    savings = [t.coded_saving for t in totals if t.coded_saving is not None]
    head = [
        Headline(
            si_bytes(totals[0].raw_bytes),
            "in 16 bits",
            f"{counted(len(totals), 'setting')} below",
        ),
    ]
    if savings:
        head.append(
            Headline(
                f"{percent(min(savings))} to {percent(max(savings))}",
                "saved by entropy coding",
                "of the fixed width",
            )
        )
    lost = [row.quality.kl_nats for row in result.rows if row.quality]
    if lost:
        head.append(
            Headline(
                f"{error(min(lost))} to {error(max(lost))}",
                "KL divergence, nats a token",
                "against the untouched cache",
            )
        )
    panels = [_curve(result)]
    if savings:
        rows = [
            Bar((row.settings.label,), parts_of(row.totals), si_bytes(row.totals.coded_bytes))
            for row in result.rows
        ]
        panels.append(
            Panel(
                "Bytes by setting",
                bars(("setting", "", "coded"), rows, PARTS),
                "What a file holds, by what it is spent on.",
            )
        )
    return head, panels


def _curve(result: Sweep) -> Panel:
    measured = all(row.quality for row in result.rows)
    points, listed = [], []
    for row, optimal in zip(result.rows, result.pareto, strict=True):
        rate = row.totals.coded_bits_per_element
        rate = row.totals.entropy_bits_per_element if rate is None else rate
        lost = row.quality.kl_nats if row.quality else row.totals.relative_rms_error
        margin = row.quality.kl_nats_margin if row.quality else None
        if rate is not None and lost is not None:
            points.append(Dot(rate, lost, _name(row.settings), bool(optimal), margin or 0.0))
        listed.append(
            (row.settings.label, bits(rate), error(lost), rough(margin), "yes" if optimal else "")
        )
    if not measured:
        points = _marked(points)
    up = _KL if measured else "relative rms error (logarithmic)"
    about = (
        f"KL divergence of predictions after the compressed cache against coded size. {_BEST}"
        if measured
        else "Quality was not measured (add --quality): the error is that of the values. " + _BEST
    )
    behind = table(
        ("setting", "bits/el", "KL nats" if measured else "rms error", "±", "Pareto"), listed
    )
    return Panel("Rate and distortion", curves([("", points)], _BITS, up), about, behind)


def _name(settings: Settings) -> str:
    return settings.codes if settings.key_bits else settings.label


def _marked(points: Sequence[Dot]) -> list[Dot]:
    """The points, with those marked that no other beats in both."""
    best = pareto([(one.x, one.y) for one in points])
    return [one._replace(best=bool(mark)) for one, mark in zip(points, best, strict=True)]


def comparison_panels(result: Comparison) -> Shown:
    """Each scheme's curve."""
    best = _marked([_dot(point) for point in result.points])
    by_scheme = {
        name: [dot for dot, p in zip(best, result.points, strict=True) if curve_of(p) == name]
        for name in result.schemes
    }
    at = f"{result.target.value:g} bits" if result.at_bits else f"KL {result.target.value:.3g} nats"
    head = [
        Headline(
            error(one.kl_nats) if result.at_bits else bits(one.coded_bits_per_element),
            f"{one.scheme}: {'KL in nats' if result.at_bits else 'bits an element'}",
            f"at {at}, ± {rough(one.margin)}; nearest setting {one.nearest}",
        )
        for one in result.standings[:4]
    ]
    listed = [
        (
            point.name,
            bits(point.coded_bits_per_element),
            error(point.quality.kl_nats),
            rough(point.quality.kl_nats_margin),
        )
        for point in result.points
    ]
    chart = curves(list(by_scheme.items()), _BITS, _KL)
    behind = table(("setting", "bits/el", "KL nats", "±"), listed)
    return head, [Panel("Rate and distortion", chart, _BEST, behind)]


def plan_panels(result: Plan) -> Shown:
    """The plan beside uniform widths, and its widths by layer."""
    measured = result.measurement
    series: list[tuple[str, list[Dot]]] = [
        ("uniform widths", [_dot(one) for one in result.uniform]),
    ]
    if result.depth:
        series.append(("depth schedule", [_dot(result.depth)]))
    rate = measured.totals.coded_bits_per_element
    if measured.quality and rate is not None:
        series.append(("the plan", [Dot(rate, measured.quality.kl_nats, "plan")]))
    flat = _marked([dot for _, some in series for dot in some])
    at = iter(flat)
    series = [(name, [next(at) for _ in some]) for name, some in series]
    listed = [
        (dot.label or name, bits(dot.x), error(dot.y)) for name, some in series for dot in some
    ]
    rows = [
        Bar((layer.label, name), ((name, tensor.bits),), str(tensor.bits))
        for layer in measured.layers
        for name, tensor in (("keys", layer.keys), ("values", layer.values))
    ]
    widths = bars(("layer", "tensor", "", "bits"), rows, ("keys", "values"))
    return [*sizes(measured.totals), *loss(measured.quality)], [
        Panel(
            "The plan beside other widths",
            curves(series, _BITS, _KL),
            _BEST,
            table(("setting", "bits/el", "KL nats"), listed),
        ),
        Panel("Widths by layer", widths, "The code width of each layer's keys and values."),
    ]


def _dot(point: Candidate) -> Dot:
    found = point.quality
    rate = point.coded_bits_per_element
    return Dot(rate, found.kl_nats, point.name, error=found.kl_nats_margin or 0.0)
