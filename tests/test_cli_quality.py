"""The commands that let the model read on, as a user types them."""

from __future__ import annotations

import json

import pytest
from processes import TEXT

from cachegen_cli.checks import verdicts
from cachegen_cli.console import Style
from cachegen_cli.options.types import Percent, Size


@pytest.mark.parametrize("format", ["table", "json", "csv", "markdown"])
@pytest.mark.parametrize("command", ["quality", "sensitivity", "plan"])
def test_stdout_is_the_result_alone(cachegen, quick, command, format):
    target = ("--target-bits", "4.5", "--choices", "2,4") if command == "plan" else ()
    done = cachegen(command, *quick, *target, "--format", format)
    assert done.code == 0 and "\x1b" not in done.out + done.err
    if format == "json":
        assert json.loads(done.out)["kind"] == command
    elif format == "csv":
        assert len({line.count(",") for line in done.out.splitlines()}) == 1
        assert "█" not in done.out
    elif format == "table":
        assert max(map(len, done.out.splitlines())) <= 80


def test_quality_as_columns(cachegen, quick):
    done = cachegen("analyze", *quick, "--quality", "-f", "csv")
    header, *rows = done.out.splitlines()
    assert "kl_nats" in header and rows[-1].split(",")[header.split(",").index("kl_nats")]
    assert "KL" in cachegen("analyze", *quick, "--quality").out
    shown = cachegen("sweep", *quick, "--quality", "--bits", "2,8").out
    assert "KL nats" in shown and "*" in shown and "│" not in shown
    wide = cachegen("sweep", *quick, "--quality", "--bits", "2,8", "--wide").out
    assert "coded bits an element" in wide and "│" in wide


def test_a_wide_terminal_gets_the_plot(cachegen, quick, monkeypatch):
    monkeypatch.setattr("cachegen_cli.console.stdout_style", lambda: Style(120))
    assert "│" in cachegen("sweep", *quick, "--quality", "--bits", "2,8").out
    assert "│" not in cachegen("sweep", *quick, "--bits", "2,8").out


def test_several_texts(cachegen, llama, tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text("\n".join(json.dumps({"body": TEXT + tail}) for tail in "ab"))
    done = cachegen(
        "quality", "--model", llama, "-p", TEXT, "-p", f"@{file}", "--text-key", "body", "--json"
    )
    data = json.loads(done.out)
    assert [t["prompt"]["source"] for t in data["texts"]] == [
        "text", f"{file}:1", f"{file}:2"
    ]  # fmt: skip
    assert data["quality"]["positions"] == sum(t["quality"]["positions"] for t in data["texts"])
    shown = cachegen("quality", "--model", llama, "-p", TEXT, "-p", TEXT).out
    assert "all texts" in shown


@pytest.mark.parametrize("command", ["analyze", "quality", "sweep"])
def test_checks(cachegen, quick, command):
    done = cachegen(command, *quick, "--fail-if-kl-above", "1e9", "--fail-if-saving-below", "-90%")
    assert done.code == 0 and done.err.count("PASS ") == (8 if command == "sweep" else 2)
    assert "KL" in done.err and "saving" in done.err and done.out
    done = cachegen(command, *quick, "-q", "--fail-if-kl-above", "0")
    assert done.code == 3 and done.out and done.err.startswith("FAIL ")
    done = cachegen(command, *quick, "-q", "--fail-if-saving-below", "99%")
    assert done.code == 3 and "is below 99 %" in done.err


def test_a_check_that_fails_still_writes_the_result(cachegen, quick, tmp_path):
    target = tmp_path / "r.json"
    done = cachegen("quality", *quick, "-o", target, "--fail-if-kl-above", "0")
    assert done.code == 3 and json.loads(target.read_text())["kind"] == "quality"


def test_a_setting_without_quality_cannot_pass(result):
    [one] = verdicts([result.measurement], 1.0, None)
    assert not one.passed


def test_a_plan_is_written_and_used(cachegen, quick, tmp_path):
    file = tmp_path / "plan.json"
    asked = ("plan", *quick, "--target-kl", "0.002", "--choices", "2,3,4", "-o", file)
    done = cachegen(*asked)
    assert (
        done.code == 0
        and "The plan takes" in " ".join(done.out.split())
        and f"Wrote {file}" in done.err
    )
    data = json.loads(file.read_text())
    for command in ("analyze", "quality", "verify", "sweep"):
        used = cachegen(command, *quick, "--schedule", file, "--json")
        assert used.code == 0
        found = json.loads(used.out)
        settings = found["rows"][-1]["settings"] if command == "sweep" else found["settings"]
        assert settings["plan"]["key_bits"] == data["key_bits"]
        assert settings["schedule"] == "plan"
    assert "plan" in cachegen("sweep", *quick, "--schedule", file).out
    assert "widths of" in cachegen("analyze", *quick, "--schedule", file).out
    packed = tmp_path / "c.cgkv"
    assert cachegen("pack", *quick, "--schedule", file, "-o", packed).code == 0
    again = cachegen(*asked)
    assert again.code == 2 and "exists" in again.err


BAD = {
    "no target": (["plan"], 2, "none is given"),
    "two targets": (["plan", "--target-kl", "1", "--target-bits", "4"], 2, "2 are given"),
    "a bare percentage": (["quality", "--fail-if-saving-below", "0.05"], 2, "not a percentage"),
    "too much": (["quality", "--fail-if-saving-below", "101%"], 2, "not a percentage"),
    "infinite KL": (["quality", "--fail-if-kl-above", "inf"], 2, "is no KL"),
    "widths beside a plan": (["analyze", "--schedule", "x.json", "--bits", "4"], 2, "decides all"),
    "stdin twice": (["quality", "-p", "-", "-p", "-"], 1, "only once"),
    "texts for one": (["verify", "-p", "a", "-p", "b"], 2, "2 texts are given"),
    "lines for one": (["pack", "-p", "@two.jsonl", "-o", "c.cgkv"], 2, "2 texts are given"),
    "size in words": (["plan", "--target-bytes", "many"], 2, "not a size"),
    "negative target": (["plan", "--target-kl", "-1"], 2, "is no target"),
    "plan's suffix": (["plan", "--target-kl", "1", "-o", "p.csv"], 2, "does not end in .json"),
    "plan's folder": (["plan", "--target-kl", "1", "-o", "no/p.json"], 2, "no folder"),
    "width among choices": (["plan", "--target-kl", "1", "--choices", "2,9"], 2, "9 is not"),
    "out of reach": (["plan", "--target-kl", "1e-12", "-p", TEXT], 1, "no plan reaches"),
    "bytes out of reach": (["plan", "--target-bytes", "1kB", "-p", TEXT], 1, "no plan fits"),
    "short text": (["quality", "-p", "abc"], 1, "too few"),
    "split too late": (["quality", "-p", TEXT, "--continuation", "60"], 1, "half of it at most"),
    "continuation of one": (["quality", "--continuation", "1"], 2, "--continuation"),
    "a poor percentage": (["quality", "--fail-if-saving-below", "x%"], 2, "not a percentage"),
    "no percentage": (["quality", "--fail-if-saving-below", "nan"], 2, "not a percentage"),
    "no KL": (["analyze", "--fail-if-kl-above", "nan"], 2, "is no KL"),
    "schedule that is no plan": (["quality", "-p", TEXT, "--schedule", "x.json"], 1, "not a plan"),
    "schedule that is not there": (["pack", "--schedule", "y.json", "-o", "c.cgkv"], 2, "neither"),
    "line without text": (["sensitivity", "-p", "@x.jsonl"], 1, "line 1 of 'x.jsonl'"),
}


@pytest.mark.parametrize(("arguments", "code", "words"), BAD.values(), ids=BAD)
def test_bad_input(cachegen, llama, tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CACHEGEN_MODEL", str(llama))
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "x.jsonl").write_text("{}")
    (tmp_path / "two.jsonl").write_text('{"text": "a"}\n{"text": "b"}')
    before = sorted(tmp_path.iterdir())
    done = cachegen(*arguments)
    assert done.code == code
    assert words in done.err and done.out == "" and "Traceback" not in done.err
    assert sorted(tmp_path.iterdir()) == before


def test_a_continuation_asks_for_quality(cachegen, quick):
    done = cachegen("analyze", *quick, "--continuation", "20", "--json")
    data = json.loads(done.out)
    assert data["quality"]["positions"] == data["prompt"]["continuation_tokens"] == 20


def test_sizes_and_percentages():
    for text, size in (("3500000", 3500000), ("3.5MB", 3500000), ("12 kB", 12000), ("1G", 10**9)):
        assert Size.parse(text) == size
    assert Percent.parse("15%") == Percent.parse(" 15 %") == 0.15 and Percent.parse("-5%") == -0.05
