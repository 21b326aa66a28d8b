"""Which rows and columns of a table are shown, and how it keeps to a terminal."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest

from cachegen_cli import (
    UsageError,
    analyze,
    capture,
    compare,
    pack,
    plan,
    render,
    sensitivity,
    sweep,
    verify,
)
from cachegen_cli.report.bars import bar
from cachegen_cli.report.choice import Choice, chosen, layers_named
from cachegen_cli.report.table import Column, View
from cachegen_cli.report.texttable import table_lines, text_width
from cachegen_cli.report.units import number, signed
from cachegen_cli.report.views import view
from cachegen_cli.results.cachefile import CacheEntry, PromptCacheFile
from cachegen_cli.results.models import ModelList, ModelRow
from cachegen_cli.results.planning import Plan, Target
from cachegen_cli.results.profile import CalibratedUnit, Calibration, ProfileInfo


@pytest.fixture(scope="module")
def scored(llama):
    return capture(str(llama), "It was a quiet night on the river. " * 3, continuation=40)


def shown_rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, between rule and totals."""
    lines = text.split("\n")
    start = next(place for place, line in enumerate(lines) if line.startswith("─")) + 1
    return [re.split(r"  +", line.strip()) for line in lines[start : lines.index("", start)]]


def test_rows_are_sorted_and_cut(result):
    by_key = render(result, "table", choice=Choice(sort="coded_bytes", top=2))
    sizes = {layer.label: layer.total.coded_bytes for layer in result.measurement.layers}
    expected = sorted(sizes, key=lambda label: -sizes[label])[:2]
    assert [row[0] for row in shown_rows(by_key)] == expected
    assert "2 of 4 rows are shown; the foot is over all of them." in by_key
    smallest = render(result, "csv", choice=Choice(sort="-coded_bytes", top=1))
    [row, *totals] = csv.DictReader(io.StringIO(smallest))
    assert int(row["coded_bytes"]) == min(t.coded_bytes for t in result.measurement.tensors)
    assert [t["layer"] for t in totals] == ["total"] * 3


def bold(found) -> dict[str, list[str]]:
    """By format what a result's bold rows are called, of the default view."""
    shown = view(found, False)
    answers = [row for row in (*shown.rows, *shown.totals) if shown.is_answer(row)]
    terminal = render(found, "table", color=True, width=500).split("\n")
    start = next(place for place, line in enumerate(terminal) if line.startswith("─"))
    lines = [line for line in terminal[start:] if line.startswith("\x1b[1m")]
    cells = [line.split("|")[1].strip() for line in render(found, "markdown").splitlines()
             if line.startswith("| ")][2:]  # fmt: skip
    return {
        "view": [shown.cells(row)[0] for row in answers],
        "table": [re.split(r"  +", line.removeprefix("\x1b[1m").strip())[0] for line in lines],
        "markdown": [cell.strip("*") for cell in cells if cell.startswith("**")],
    }


def test_bold_is_what_answers(result, captured, scored):
    graded, swept = sensitivity(scored), sweep(scored, bits=(2, 4), quality=True)
    compared = compare(scored, schemes=("group", "uniform"))
    verified = verify(captured)
    broken = replace(verified.checks[2], failure="keys: other codes came back")
    failing = replace(verified, checks=(*verified.checks[:2], broken, *verified.checks[3:]))
    first = [one.nearest for one in compared.standings]
    planned = plan(scored, target_bits=6, choices=(2, 4))
    for one, names in (
        (result, ["total"]), (verified, []), (failing, ["2"]), (swept, ["2", "4"]),
        (graded, [max(graded.rows, key=lambda row: row.kl_nats).label]),
        (compared, first[:1] if compared.winner else first),
        (planned, ["plan" if planned.rival.is_beaten else planned.rival.name]),
        (ModelList({}, (ModelRow("a", "hub"),)), []),
    ):  # fmt: skip
        assert bold(one) == dict.fromkeys(("view", "table", "markdown"), names), one.kind
        page = render(one, "html")
        full = view(one, True)
        answers = [row for row in (*full.rows, *full.totals) if full.is_answer(row)]
        assert page.count('<tr class="answer">') == len(answers) == len(names)
    by_tensor = render(result, "table", wide=True, color=True).split("\n")
    assert [line.split()[1] for line in by_tensor if line.startswith("\x1b[1m")] == [
        "tensor", "both",
    ]  # fmt: skip


def test_rows_that_are_chosen_stay_bold(result):
    graded = view(result, False)
    some = replace(graded, answers=[graded.rows[2]])
    for choice in (Choice(sort="coded_bytes"), Choice(layers=frozenset({2})), Choice(top=3)):
        kept = chosen(some, choice)
        assert [str(row["layer"]) for row in kept.rows if kept.is_answer(row)] == ["2"]


def test_a_wrong_choice_loses_no_result(quick, cachegen, tmp_path):
    target = tmp_path / "r.csv"
    for asked in (
        ("--sort", "banana"),
        ("--layers", "77"),
        ("--layers", "0-3", "--sort", "saving"),
    ):
        done = cachegen("analyze", *quick, *asked, "-o", target, "--force")
        assert done.code == 2 and "all rows are shown: " in done.err and "hint: " in done.err
        assert len(target.read_text().splitlines()) == 1 + 8 + 3
    with pytest.raises(UsageError, match="backwards"):
        layers_named("3-1")


def test_layers_are_chosen(result):
    some = render(result, "markdown", choice=Choice(layers=layers_named("1-2")))
    assert [line.split("|")[1].strip() for line in some.splitlines() if line.startswith("| ")][
        2:4
    ] == ["1", "2"]
    with pytest.raises(UsageError, match="no layer 7"):
        render(result, "table", choice=Choice(layers=frozenset({7})))


def test_what_cannot_be_chosen(result, swept, cachegen):
    with pytest.raises(UsageError, match="has no column 'weight'"):
        render(result, "table", choice=Choice(sort="weight"))
    with pytest.raises(UsageError, match="several columns 'saving'"):
        render(result, "table", choice=Choice(sort="saving"))
    with pytest.raises(UsageError, match="not layers"):
        render(swept, "table", choice=Choice(layers=frozenset({0})))
    for text in ("", "a", "1,", "3-", "-3", "1;2"):
        with pytest.raises(UsageError, match="names no layers"):
            layers_named(text)
    for form in ("json", "html"):
        with pytest.raises(UsageError, match="holds every row"):
            render(result, form, choice=Choice(top=1))
    done = cachegen("analyze", "-p", "abc", "--top", 2, "--json")
    assert done.code == 2 and "--top is for tables" in done.err


SPREAD = (0, 2, 4, 8)  # entries of one row, which people read as "4 of 0-8"


@pytest.fixture(scope="module")
def by_entry(result, captured, scored, tmp_path_factory):
    """A result of each kind whose rows are entries: one of several apart, then parts of 10, 11."""
    keep = [{"layers": SPREAD}, {"layer": "10/1"}, {"layer": "10#2"}, {"layer": 11, "layers": ()}]

    def moved(rows):
        return tuple(
            replace(row, **{"layers": (), **kept}) for row, kept in zip(rows, keep, strict=True)
        )

    measurement = replace(result.measurement, layers=moved(result.measurement.layers))
    verified, graded = verify(captured), sensitivity(scored)
    packed = pack(captured, tmp_path_factory.mktemp("packed") / "c.cgkv")
    entry = CacheEntry(0, "KVCache", (1, 2, 9, 16), (1, 2, 9, 16), "F16", 9, 9, 9, 576, 576)
    return [
        replace(result, measurement=measurement),
        replace(packed, measurement=measurement),
        replace(verified, checks=moved(verified.checks)),
        replace(graded, rows=moved(graded.rows[::2])),
        Plan(
            result.run, Target("kl_nats", 1), (4,), 4, 1, None, (), measurement, (), None
        ),
        PromptCacheFile(
            "inspect", "c.safetensors", "C", 9, {}, 0,
            tuple(replace(entry, entry=at) for at in (0, "10/1", "10#2", 11)),
        ),
        Calibration(
            result.run, ProfileInfo("p", "", 1, "m", 1, 99),
            tuple(
                CalibratedUnit(at, "keys", 32, 8, 0.9, (1.0,))
                for at in (SPREAD, ("10/1",), ("10#2",), (11,))
            ),
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("format", ["table", "csv", "markdown"])
@pytest.mark.parametrize("wide", [False, True])
def test_layers_are_chosen_by_number_whatever_they_are_called(by_entry, wide, format):
    for one in by_entry:
        if isinstance(one, Calibration) and not wide:
            continue  # by default only of several layers
        full = view(one, wide)
        first = (
            {0: {"0"}} if isinstance(one, PromptCacheFile) else {n: {"4 of 0-8"} for n in SPREAD}
        )
        for asked, expected in (first | {10: {"10/1", "10#2"}, 11: {"11"}}).items():
            choice = Choice(layers=frozenset({asked}))
            rows = chosen(full, choice).rows
            assert {full.cells(row)[0] for row in rows} == expected
            assert render(one, format, wide=wide, choice=choice)
        with pytest.raises(UsageError, match="no layer 3 in this table") as wrong:
            render(one, format, wide=wide, choice=Choice(layers=frozenset({3, 11})))
        assert wrong.value.hint == "layers go from 0 to 11"


def test_layers_are_sorted_by_number(result):
    layers = result.measurement.layers
    many = [replace(layers[0], layer=at, layers=()) for at in (2, 10, "9/1", 0, "9/0")]
    changed = replace(result, measurement=replace(result.measurement, layers=tuple(many)))
    for sort, expected in (
        ("layer", ["10", "9/1", "9/0", "2", "0"]), ("-layer", ["0", "2", "9/0", "9/1", "10"]),
    ):  # fmt: skip
        found = chosen(view(changed, False), Choice(sort=sort))
        assert [str(row["layer"]) for row in found.rows] == expected


def test_counts_of_layers_are_no_layers():
    listed = ModelList({}, (ModelRow("a", "hub", layers=4),))
    with pytest.raises(UsageError, match="not layers"):
        render(listed, "table", choice=Choice(layers=frozenset({4})))
    with pytest.raises(UsageError, match="names no layers"):
        layers_named("0-999999999999")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_wide_tables_are_set_one_below_the_other(result, swept, width):
    for one in (result, swept):
        text = render(one, "table", wide=True, width=width, fit=True)
        assert max(map(text_width, text.splitlines())) <= width
        full = view(one, True)
        for column in full.columns:
            assert column.header in text
        for row in (*full.rows, *full.totals):
            assert all(cell in text for cell in full.cells(row))
        assert "Not shown" not in text


@pytest.mark.parametrize("width", [20, 40, 60, 72])
def test_narrow_terminals_lose_columns_from_the_right_and_say_so(result, width):
    text = render(result, "table", width=width, fit=True)
    head = text.split("\n\n")[1].splitlines()[0]
    headers = [column.header for column in view(result, False).columns]
    kept = re.split(r"  +", head.strip())
    assert kept == headers[: len(kept)] and kept[0] == "layer"
    named = text[text.index("Not shown in") :].split(":", 1)[1].split("\n\n")[0]
    assert re.sub(r"\s+", " ", named).strip(" .").split(", ") == headers[len(kept) :]
    assert all(len(line) <= width for line in text.splitlines() if "  " in line)


def test_piped_tables_are_whole(result):
    lines = render(result, "table", wide=True).splitlines()
    assert sum(line.startswith("─") for line in lines) == 1


def test_wide_characters_take_two_columns():
    assert [text_width(t) for t in ("abc", "日本", "e\u0301", "é")] == [3, 4, 1, 1]
    columns = [Column("a", "name", left=True), Column("b", "n")]
    rows = [{"a": "日本", "b": 1}, {"a": "abcd", "b": 22}]
    lines, _ = table_lines(View("t", columns, rows), 80, color=False, fit=True, drop=False)
    assert lines[2:] == ["日本   1", "abcd  22"]


def test_bars(result):
    lengths = {0: "", 1: "▌", 2: "█", 3.8: "█▉", 4: "██", -1: "", None: ""}
    assert {value: bar(value, 4.0, 2) for value in lengths} == lengths
    assert bar(1, 0, 8) == ""
    wide = render(result, "table", wide=True)
    assert "████████" in wide
    assert "coded_bar" not in render(result, "csv")


def test_numbers_by_their_keys():
    assert number("coded_bytes", 1500) == "1.50 kB" and number("coded_bytes", -1500) == "-1.50 kB"
    assert number("coded_saving", 0.034) == "3.4 %" and signed("coded_saving", -0.01) == "-1.0 pt"
    assert (
        number("coded_bits_per_element", 3.14159) == "3.14"
        and number("kl_nats", 0.0123) == "0.0123"
    )
    assert signed("elements", 1200) == "+1,200" and signed("kl_nats", 0.0) == "0"
    assert number("x", None) == signed("x", None) == "-"


def test_terminals(llama, cachegen, monkeypatch):
    from cachegen_cli import console

    monkeypatch.setattr(console.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    style = console.stdout_style()
    assert style == (60, True, True)
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as inner:
            inner.setenv(name, value)
            assert console.stdout_style() == (60, False, True)


def test_detail_over_texts(captured, llama):
    one = analyze(captured, bits=3, detail=True).measurement.layers[0].keys.detail
    both = analyze([captured, captured], bits=3, detail=True).measurement.layers[0].keys.detail
    assert both.code_counts == tuple(2 * count for count in one.code_counts)
    assert both.group_bits_per_element == pytest.approx(one.group_bits_per_element)


@pytest.mark.parametrize("scheme", ["group", "uniform", "exact", "cachegen"])
def test_detail_counts_every_element(captured, scheme):
    import numpy as np

    found = analyze(captured, scheme=scheme, detail=True)
    for layer in found.measurement.layers:
        for size in (layer.keys, layer.values):
            detail = size.detail
            assert sum(detail.code_counts) == size.elements
            bits = np.array(detail.group_bits_per_element)
            assert bits.min() > 0 and len(bits) <= 32
            codes = 8 * (size.raw_channel_bytes - size.parameter_bytes) / size.elements
            assert bits.mean() == pytest.approx(codes, abs=0.05)
