"""Saved results: shown again in every format, and held against each other."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cachegen_cli import UsageError, analyze, from_json, render, to_json
from cachegen_cli.output import FORMATS
from cachegen_cli.report.differences import differences
from cachegen_cli.saved import load_result

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def both(captured):
    return [analyze(captured, bits=bits) for bits in (4, 3)]


@pytest.fixture
def files(both, tmp_path):
    paths = [tmp_path / name for name in ("before.json", "after.json")]
    for path, result in zip(paths, both, strict=True):
        path.write_text(to_json(result))
    return paths


def test_every_figure_is_held_against_the_reference(both):
    found = differences(both, ["a", "b"], 0)
    rows = {(row.row, row.figure): row for row in found.rows}
    totals = [result.measurement.totals for result in both]
    for figure in ("raw_bytes", "coded_bytes", "coded_saving"):
        row = rows["total", figure]
        assert row.values == tuple(getattr(one, figure) for one in totals)
        assert row.less(0) == [0, row.values[1] - row.values[0]]
        assert row.ratios(1)[0] == row.values[0] / row.values[1]
    for place, layer in enumerate(both[0].measurement.layers):
        assert rows[f"layer {place}", "coded_bytes"].values[0] == layer.total.coded_bytes
        assert rows[f"layer {place} keys", "payload_bytes"].values[0] == layer.keys.payload_bytes
    assert found.settings == {"settings.key_bits": (4, 3), "settings.value_bits": (4, 3)}
    assert from_json(to_json(found)) == found


def test_every_format_of_differences_holds_the_same(both):
    found = differences(both, ["a", "b"], 0)
    listed = {(r["row"], r["figure"]): r for r in csv.DictReader(io.StringIO(render(found, "csv")))}
    held = {(r["row"], r["figure"]): r for r in json.loads(to_json(found))["rows"]}
    assert listed.keys() == held.keys()
    for place, row in listed.items():
        assert float(row["value_1"]) == held[place]["values"][0]
        assert float(row["difference_2"]) == held[place]["differences"][1]
    text = render(found, "table")
    assert "A: a; B: b.\n" in text and "differs: from A. ratio: to A." in text
    assert "settings.key_bits 4 / 3" in text and "more figures with --wide" in text


def test_sweeps_and_other_kinds(swept, both):
    same = differences([swept, swept], ["a", "b"], 1)
    assert all(set(row.less(1)) == {0} for row in same.rows)
    assert {row.row for row in same.rows} == {
        f"bits {bits} group {group}" for bits in (2, 8) for group in (16, 32)
    }
    assert "versions differs." in render(same, "table")
    with pytest.raises(UsageError, match="a of 'sweep', b of 'analyze'"):
        differences([swept, both[0]], ["a", "b"], 0)


def test_what_all_rows_share_is_compared(captured):
    from cachegen_cli import sweep

    one, other = (sweep(captured, scheme=name) for name in ("group", "cachegen"))
    found = differences([one, other], ["a", "b"], 0)
    assert found.settings["settings.scheme"] == ("group", "cachegen")
    assert "No row is in all of them" in render(found, "table")


def test_a_result_from_stdin(files, cachegen, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(files[0].read_text()))
    assert cachegen("report", "-").out == cachegen("report", files[0]).out


def test_commands_are_recorded_without_what_only_shows(llama, files, cachegen, monkeypatch):
    asked = ("analyze", "--model", llama, "-p", "a b")
    assert cachegen(*asked, "--wide", "-q", "-o", files[0], "--force").code == 0
    assert json.loads(cachegen(*asked, "--json").out)["command"] == (
        f"cachegen analyze --model {llama} -p 'a b'"
    )
    monkeypatch.setenv("CACHEGEN_MODEL", str(llama))
    told = json.loads(cachegen("analyze", "-p", "ab", "-f", "json").out)["command"]
    assert told == f"CACHEGEN_MODEL={llama} cachegen analyze -p ab"


def test_report(files, both, cachegen, tmp_path):
    for form in FORMATS:
        assert cachegen("report", files[0], "-f", form).out == render(both[0], form)
    page = tmp_path / "p.html"
    assert cachegen("report", *files, "-o", page).code == 0
    found = load_result(page)
    assert found.command == f"cachegen report {files[0]} {files[1]}"
    assert replace(found, command="") == differences(both, [str(path) for path in files], 0)
    second = cachegen("report", *files, "--reference", 2, "--json")
    assert json.loads(second.out)["reference"] == 1
    assert cachegen("report", *files, "--reference", 3).code == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"), (b"", "not a result"), (b"{}", "not a result"),
        (b"\xff\xfe\x00", "holds no text"), (b"[" * 200_000, "not a result"),
        (b'{"schema": 1, "kind": "models", "tool": {}, "models": [], "x": NaN}', "not a result"),
        (b'{"schema": 9, "kind": "analyze"}', "schema 9"),
        (b"<!doctype html>", "holds no result"), (b"<!DOCTYPE html><p>", "holds no result"),
    ],
)  # fmt: skip
def test_files_that_hold_no_result(tmp_path, content, words, cachegen):
    path = tmp_path / "r.json"
    if content is not None:
        path.write_bytes(content)
    done = cachegen("report", path)
    assert done.code == 1 and words in done.err and "hint: " in done.err


@pytest.mark.parametrize("name", ["analyze", "sweep"])
def test_results_of_the_first_version_still_render(name):
    """Written by the program as it was when part 1 of its history ended."""
    result = load_result(DATA / f"first-{name}.json")
    for form in FORMATS:
        assert render(result, form)
    assert "entropy" in render(result, "table")
