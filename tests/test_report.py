from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cachegen_cli import InputError, analyze, from_json, render, to_json
from cachegen_cli.catalog import list_models
from cachegen_cli.report.units import percent, si_bytes, whole
from cachegen_cli.results.models import ModelList, ModelRow
from cachegen_cli.results.run import Skipped


@pytest.fixture
def listed():
    row = ModelRow("owner/some-model-with-a-very-long-name-4bit-instruct", "hub", 2, 3, 64, 8192)
    return ModelList(
        {"name": "cachegen"},
        (row, replace(row, id="b", bytes_per_token=23040, bytes_8k=1, bytes_32k=2, bytes_128k=3)),
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (9994, "9.99 kB"),
        (9996, "10.0 kB"), (99_960, "100 kB"), (999_499, "999 kB"), (999_501, "1.00 MB"),
        (8_390_000, "8.39 MB"), (3 * 10**12, "3.00 TB"), (5 * 10**15, "5000 TB"),
    ],
)  # fmt: skip
def test_bytes_for_people(count, text):
    assert si_bytes(count) == text


def test_other_units():
    assert percent(0.0341) == "3.4 %" and percent(-0.5) == "-50.0 %"
    assert whole([2, 8, 4]) == "2-8" and whole(None) == "-" and whole(3) == "3"


def test_json_round_trip(result, swept, listed):
    for one in (result, swept, listed):
        assert from_json(to_json(one)) == one
        assert to_json(from_json(to_json(one))) == to_json(one)


def test_json_holds_the_promised_keys(result, swept):
    data = json.loads(to_json(result))
    assert data["schema"] == 1 and data["kind"] == "analyze"
    assert data.keys() >= {
        "tool", "model", "prompt", "settings", "layers", "skipped", "totals", "warnings", "timing",
    }  # fmt: skip
    assert data["model"].keys() >= {"id", "source", "layers", "kv_heads", "head_dim", "dtype"}
    assert data["prompt"].keys() >= {"source", "tokens", "sha256"}
    assert data["layers"][0].keys() >= {"layer", "cache", "keys", "values"}
    byte_names = {
        "elements", "raw_bytes", "parameter_bytes", "fixed_bytes", "entropy_bytes",
        "entropy_bits_per_element", "entropy_saving", "raw_channel_bytes", "raw_pooled_bytes",
        "delta_channel_bytes", "delta_pooled_bytes",
    }  # fmt: skip
    assert data["layers"][0]["keys"].keys() >= byte_names | {"bits", "delta"}
    assert data["totals"].keys() >= byte_names
    for row in json.loads(to_json(swept))["rows"]:
        assert row.keys() >= {"settings", "totals", "layers"}


def test_same_run_twice_gives_the_same_json(captured, llama, result):
    again = analyze(str(llama), "It was a quiet night on the river. " * 3)
    first, second = (json.loads(to_json(r)) for r in (result, again))
    assert first.pop("timing") != {} and second.pop("timing") != {}
    assert first == second


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", '{"schema": 1}', '{"schema": 1, "kind": "poem"}',
             '{"schema": 1, "kind": "analyze"}', '{"schema": "x", "kind": "analyze"}'],
)  # fmt: skip
def test_foreign_json(text):
    with pytest.raises(InputError, match="not a result"):
        from_json(text)


def test_later_schema(result):
    with pytest.raises(InputError, match="schema 99"):
        from_json(json.dumps(json.loads(to_json(result)) | {"schema": 99}))


def test_every_format_holds_the_same_totals(result):
    totals = result.measurement.totals
    data = json.loads(render(result, "json"))
    assert sum(t["fixed_bytes"] for la in data["layers"] for t in (la["keys"], la["values"])) == (
        data["totals"]["fixed_bytes"]
    ) == totals.fixed_bytes  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(render(result, "csv"))))
    tensors = [r for r in rows if r["layer"] != "total"]
    assert len(tensors) == 8
    for name in ("raw_bytes", "fixed_bytes", "entropy_bytes", "delta_pooled_bytes"):
        assert sum(int(r[name]) for r in tensors) == int(rows[-1][name]) == getattr(totals, name)
    for text in (render(result, "table"), render(result, "markdown")):
        [line] = [line for line in text.splitlines() if "total" in line.split("|")[:2][-1]]
        for name in ("raw_bytes", "fixed_bytes", "entropy_bytes"):
            assert si_bytes(getattr(totals, name)) in line


def test_csv_is_tidy(swept, listed):
    rows = list(csv.DictReader(io.StringIO(render(swept, "csv"))))
    assert [(r["key_bits"], r["group_size"]) for r in rows] == [
        ("2", "16"), ("8", "16"), ("2", "32"), ("8", "32"),
    ]  # fmt: skip
    assert [float(r["entropy_saving"]) for r in rows] == [
        r.totals.entropy_saving for r in swept.rows
    ]
    assert next(csv.DictReader(io.StringIO(render(listed, "csv"))))["bytes_8k"] == ""


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_of_a_default_view_exceeds_the_width(result, swept, listed, width):
    for one in (result, swept, listed):
        assert max(map(len, render(one, "table", width=width).splitlines())) <= width


@pytest.mark.parametrize("width", [20, 80, 300])
def test_wide_view_is_never_cut(result, swept, width):
    for one in (result, swept):
        text = render(one, "table", wide=True, width=width)
        assert "…" not in text
        for header in ("raw/chan", "delta/pool", "rms error", "bits/el"):
            assert header in text
        for tensor in result.measurement.tensors:
            assert one is swept or si_bytes(tensor.delta_pooled_bytes) in text


def test_color_only_where_asked(result):
    assert "\x1b[" not in render(result, "table")
    assert "\x1b[" in render(result, "table", color=True)
    assert "\x1b[" not in render(result, "markdown", color=True)


def test_skipped_entries_are_named(result):
    run = replace(result.run, skipped=(Skipped(5, "ArraysCache", 2048, "no tokens"),))
    text = render(replace(result, run=run), "table", width=200)
    assert "Cache entry 5 (ArraysCache, 2.05 kB) is not in these figures: no tokens." in text


@pytest.mark.parametrize("delta", ["auto", "on", "off"])
def test_what_decided_is_said(captured, delta):
    text = render(analyze(captured, delta=delta), "table", width=500)
    sentence = "Token deltas were smaller" if delta == "auto" else f"token deltas are {delta}:"
    assert sentence in text


def test_parameters_beyond_16_bits_are_said(captured, llama):
    assert "more than 16 bits" in render(analyze(str(llama), "a"), "table", width=500)


def test_no_models():
    assert "None is here" in render(ModelList({}, ()), "table")


def test_models_on_this_machine(tmp_path: Path, monkeypatch, llama, sliding, mamba):
    hub = tmp_path / "hub"
    for name, folder in (("llama", llama), ("sliding", sliding), ("mamba", mamba), ("odd", None)):
        snapshot = hub / f"models--tiny--{name}" / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (hub / f"models--tiny--{name}" / "refs").mkdir()
        (hub / f"models--tiny--{name}" / "refs" / "main").write_text("0" * 40)
        config = (folder / "config.json").read_text() if folder else '{"model_type": "odd"}'
        (snapshot / "config.json").write_text(config)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("cachegen_cli.catalog.bundled_file", lambda: None)
    found = {row.id: row for row in list_models().models}
    plain, window = found["tiny/llama"], found["tiny/sliding"]
    per_token = 4 * 2 * (16 + 16) * 2  # layers x heads x (keys + values) x 2 bytes
    assert (plain.kv_heads, plain.head_dim, plain.context) == (2, 16, 512)
    assert plain.bytes_per_token == per_token and plain.bytes_8k == 8192 * per_token
    assert window.bytes_32k == 32768 * per_token // 2 + 24 * per_token // 2
    assert found["tiny/mamba"].problem == "no KV cache"
    assert "not sized" in found["tiny/odd"].problem
    assert "tiny/odd: not sized" in render(ModelList({}, tuple(found.values())), "table")
