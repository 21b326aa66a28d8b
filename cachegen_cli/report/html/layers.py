"""Charts that go through the layers of a cache."""

from __future__ import annotations

from collections.abc import Sequence

from cachegen_cli.report.entries import named_tensors
from cachegen_cli.report.html.charts import Bar, bars, heat, histogram
from cachegen_cli.report.html.markup import element, text
from cachegen_cli.report.html.panels import Headline, Panel, Shown, loss, sizes
from cachegen_cli.report.html.tables import table
from cachegen_cli.report.units import error, number, plus_minus, si_bytes
from cachegen_cli.results.analyses import Analysis
from cachegen_cli.results.detail import Detail
from cachegen_cli.results.differences import Differences
from cachegen_cli.results.planning import Sensitivity
from cachegen_cli.results.sizes import Bytes
from cachegen_cli.wording import counted

PARTS = ("payload", "tables", "parameters", "headers", "kept in 16 bits")
_ESTIMATED = ("entropy of the codes", "parameters", "kept in 16 bits")
_MOST_COUNTS = 32  # rows of a histogram's table
_NO_DETAIL = "The result does not hold them: measure with --detail, and this panel is filled."


def analysis_panels(result: Analysis) -> Shown:
    """Bytes by layer, bits by channel group, and how often codes occur."""
    measured = result.measurement
    named = [(row.label, name, size) for row, name, size in named_tensors(measured)]
    rows = [
        Bar((layer, tensor), parts_of(size), si_bytes(size.coded_bytes or size.entropy_bytes))
        for layer, tensor, size in named
    ]
    coded = measured.totals.coded_bytes is not None
    panels = [
        Panel(
            "Bytes by layer",
            bars(("layer", "tensor", "", "coded" if coded else "estimate"), rows,
                 PARTS if coded else _ESTIMATED),
            "What a file holds of each layer's keys and values, by what it is spent on."
            if coded
            else "The entropy estimate of each layer's keys and values, without tables.",
        ),
        *_detail_panels([(la, te, size.detail) for la, te, size in named if size.detail]),
    ]  # fmt: skip
    return [*sizes(measured.totals), *loss(measured.quality)], panels


def parts_of(size: Bytes) -> tuple[tuple[str, float], ...]:
    """What bytes are spent on, as parts of a bar."""
    if size.payload_bytes is None:  # of earlier versions
        codes = size.entropy_bytes - size.parameter_bytes - size.kept_bytes
        found = (codes, size.parameter_bytes, size.kept_bytes)
        return tuple(zip(_ESTIMATED, found, strict=True))
    return tuple(
        zip(
            PARTS,
            (
                size.payload_bytes, size.table_bytes or 0, size.parameter_bytes,
                size.header_bytes or 0, size.kept_bytes,
            ),
            strict=True,
        )
    )  # fmt: skip


def _detail_panels(found: Sequence[tuple[str, str, Detail]]) -> list[Panel]:
    titles = ("Bits an element by channel group", "How often codes occur")
    if not found:
        return [Panel(title, "", _NO_DETAIL) for title in titles]
    wide = max(len(detail.group_bits_per_element) for *_, detail in found)
    size = found[0][2].group_channels
    grid = heat(
        ("layer", "tensor", *(str(place * size) for place in range(wide))),
        [((layer, tensor), detail.group_bits_per_element) for layer, tensor, detail in found],
    )
    names = [f"layer {layer}, {tensor}" for layer, tensor, _ in found]
    options = [element("option", text(name), value=place) for place, name in enumerate(names)]
    figures = [
        element(
            "figure",
            element("figcaption", text(name)),
            histogram(detail.code_counts, detail.lowest_code, detail.codes_per_count, name),
            element("details", element("summary", "Figures"), _counts(detail)),
            data_choice=place,
        )
        for place, (name, (*_, detail)) in enumerate(zip(names, found, strict=True))
    ]
    chooser = element(
        "label", "Tensor ", element("select", *options, id="tensor"), class_="chooser", hidden=""
    )
    return [
        Panel(
            titles[0],
            grid,
            f"Ideal bits of the codes, by {counted(size, 'channel')}, head after head (columns), "
            "with one distribution a channel; without tables and parameters.",
        ),
        Panel(titles[1], chooser + "\n".join(figures), "Counts of each code of a tensor."),
    ]


def _counts(detail: Detail) -> str:
    """Counts as a table, of neighbours together where they are many."""
    step = -(-len(detail.code_counts) // _MOST_COUNTS)
    rows = []
    for place in range(0, len(detail.code_counts), step):
        first = detail.lowest_code + place * detail.codes_per_count
        last = first + step * detail.codes_per_count - 1
        count = sum(detail.code_counts[place : place + step])
        rows.append((str(first) if first == last else f"{first} to {last}", f"{count:,}"))
    return table(("code", "times"), rows)


def sensitivity_panels(result: Sensitivity) -> Shown:
    """KL of each tensor alone."""
    rows = [
        Bar((row.label, row.tensor), ((row.tensor, max(row.kl_nats, 0.0)),),
            plus_minus(row.kl_nats, row.kl_nats_margin))
        for row in result.rows
    ]  # fmt: skip
    together = result.together
    head = [
        Headline(
            plus_minus(together.kl_nats, together.kl_nats_margin),
            "KL divergence with everything compressed, nats a token",
            f"over {counted(together.positions, 'position')}",
        ),
        Headline(error(result.sum_kl_nats), "sum of each tensor alone", "equal, if effects add up"),
    ]
    chart = bars(("layer", "tensor", "", "KL nats"), rows, ("keys", "values"))
    return head, [
        Panel("KL by layer", chart, "KL with that tensor alone compressed; negative is not drawn.")
    ]


def differences_panels(result: Differences) -> Shown:
    """The figure that matters most, row by row, in every result."""
    from cachegen_cli.report.differences import letter, main_figure

    figure = main_figure(result)
    kinds = [f"{letter(place)}: {name}" for place, name in enumerate(result.sources)]
    rows = [
        Bar((row.row, letter(place)), ((kinds[place], max(value or 0.0, 0.0)),),
            number(figure, value))
        for row in result.rows
        if row.figure == figure and not row.foot and not row.wide
        for place, value in enumerate(row.values)
    ]  # fmt: skip
    if not rows:
        return [], []
    return [], [Panel(f"{figure} side by side", bars(("row", "result", "", ""), rows, kinds), "")]
