"""What was not measured is not zero, and nothing is concluded from it."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, save_prompt_cache

from cachegen_cli import analyze, capture_file, from_json, render, to_json, verify
from cachegen_cli.checks import verdicts
from cachegen_cli.report.differences import differences
from cachegen_cli.results.analyses import Sweep
from cachegen_cli.results.quality import Quality
from cachegen_cli.results.run import PromptInfo, Run
from cachegen_cli.results.settings import PlannedWidths, Settings
from cachegen_cli.results.sizes import Bytes


@pytest.fixture(scope="module")
def filed(tmp_path_factory):
    """A prompt cache that names neither its model nor its tokens, as mlx-lm's users write them."""
    path = tmp_path_factory.mktemp("filed") / "c.safetensors"
    entries = [KVCache(), KVCache()]
    for seed, entry in enumerate(entries):
        rows = mx.random.normal((1, 2, 300, 16), key=mx.random.key(seed)).astype(mx.float16)
        entry.update_and_fetch(rows, 3 * rows)
    save_prompt_cache(str(path), entries)
    return path


def test_a_file_has_no_time_of_reading_its_prompt(filed, captured):
    found = verify(capture_file(filed))
    assert "prefill_seconds" not in found.run.timing
    assert found.load_below_bytes_per_second > 0 and found.load_above_bytes_per_second is None
    again = from_json(to_json(found))
    assert again == found
    for one in (found, again):
        text = " ".join(render(one, "table").split())
        assert "never beats" not in text
        assert "No prompt was read, so what reading it again would take is not known." in text
    # the same figures beside a prompt that was read
    slow = replace(found, run=found.run.with_timing({"prefill_seconds": 1e-6}))
    assert "never beats reading the prompt again (0.0 s)" in " ".join(render(slow, "table").split())
    fast = replace(found, run=found.run.with_timing({"prefill_seconds": 1e4}))
    assert fast.load_above_bytes_per_second == pytest.approx(
        found.coded_bytes / (1e4 - found.run.timing["decode_seconds"])
    )
    # a sum over texts of which one was not read is not known
    mixed = [analyze(source).run for source in (captured, capture_file(filed))]
    for runs in (mixed, mixed[::-1]):
        assert "prefill_seconds" not in Run.over(runs).timing
        assert Run.over(runs).timing["load_seconds"] >= 0


def test_a_profiled_run_of_a_file_has_no_row_for_reading(cachegen, filed):
    done = cachegen("verify", "--prompt-cache-file", filed, "--profile-run")
    assert done.code == 0 and "decode" in done.err and "prefill" not in done.err
    assert "prefill" not in render(verify(capture_file(filed)), "html")


def test_a_text_that_is_not_known_is_not_the_same(filed, result):
    first = analyze(capture_file(filed))
    found = differences([first, first], ["a", "b"], 0)
    assert found.settings == {"prompt.sha256": (None, None)}
    text = " ".join(render(found, "table").split())
    assert "Nothing that the results tell of model, prompt, settings and versions differs." in text
    assert "Whether the text itself is the same is not known." in text
    known = replace(first.run, prompt=replace(first.run.prompt, sha256="ab"))
    text = render(
        differences([first, replace(first, run=known)], ["a", "b"], 0), "table", width=500
    )
    assert "Not the same" not in text and "Whether the text itself" in text
    assert "not known" not in render(differences([result, result], ["a", "b"], 0), "table")
    texts = [PromptInfo("a", 3, sha256, 3, False) for sha256 in ("", "ab")]
    assert PromptInfo.of(texts).sha256 == ""


def test_a_model_that_is_not_known_is_not_another(filed):
    plan = PlannedWidths("plan.json", "somebody/model", (4, 4), (4, 4))
    found = analyze(capture_file(filed), schedule="uniform")
    assert found.run.model.id == "unknown model"
    settings = Settings(schedule="plan", plan=plan)
    codes = [notice.code for notice in verify(capture_file(filed), settings=settings).run.warnings]
    assert "plan-for-another-model" not in codes


def test_nothing_has_neither_saving_nor_error():
    none = {field.name: 0 for field in fields(Bytes)}
    nothing, zeros = Bytes(**none), Bytes(**none | {"elements": 8, "fixed_bytes": 4})
    for name in Bytes.DERIVED:
        assert (getattr(nothing, name) is None) == (name not in ("raw_bytes", "coded_bytes"))
    assert zeros.relative_rms_error is None and zeros.coded_saving == 1.0
    json.loads(json.dumps(zeros.to_json(), allow_nan=False))


def test_a_check_of_nothing_does_not_pass(result):
    tensors = dict.fromkeys(("fixed_bytes", "elements"), 0)
    measured = result.measurement
    layers = [
        replace(la, keys=replace(la.keys, **tensors), values=replace(la.values, **tensors))
        for la in measured.layers
    ]
    [verdict] = verdicts([replace(measured, layers=tuple(layers))], None, 0.0)
    assert not verdict.passed


def test_rows_without_sizes_are_no_points_of_a_front(swept):
    quality = Quality(**{field.name: 0.1 for field in fields(Quality)})
    graded = [replace(row, quality=quality) for row in swept.rows]
    old = [replace(la, keys=replace(la.keys, payload_bytes=None)) for la in graded[0].layers]
    rows = (replace(graded[0], layers=tuple(old)), *graded[1:])
    assert Sweep(swept.run, rows).pareto[0] is None
