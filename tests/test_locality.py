from __future__ import annotations

from math import erf, log2, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachegen_cli import InputError, UsageError
from cachegen_cli.locality import (
    autocorrelation,
    consecutive_design,
    entropies,
    implied_ratios,
    layer_entropies,
    paper_design,
    raw_design,
    shuffled,
    variance_ratios,
)
from cachegen_cli.schemes.cachegen import CacheGen

LAGS = (1, 2, 3, 5, 9, 10, 20, 50, 100)
DESIGNS = (raw_design, consecutive_design)


def ar1(rho, tokens, channels, seed=0):
    """Stationary unit-variance AR(1) channels around means of their own."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((tokens, channels)) * sqrt(1 - rho**2)
    x = np.empty_like(noise)
    x[0] = rng.standard_normal(channels)
    for t in range(1, tokens):
        x[t] = rho * x[t - 1] + noise[t]
    return (x + 5 * rng.standard_normal(channels)).astype(np.float32)


def shipped_codes(x, half):
    """The shipped codec's codes 0 .. 2 * half of [tokens, channels], as [channels, tokens]."""
    peaks = np.abs(x).max(axis=1, keepdims=True)
    return np.rint(x * (np.float32(half) / peaks) + np.float32(half)).astype(np.int8).T


def rounded_normal(step, tokens, channels, seed=0):
    """(codes of rounded normal noise, their number of symbols, their true entropy)."""
    peak = round(6 / step)
    x = np.random.default_rng(seed).standard_normal((channels, tokens))
    codes = np.clip(np.rint(x / step), -peak, peak).astype(np.int64) + peak
    edges = [(k - 0.5) * step for k in range(-peak, peak + 2)]
    below = [0.5 * (1 + erf(edge / sqrt(2))) for edge in edges]
    p = np.diff(below)
    return codes, 2 * peak + 1, float(-(p * np.log2(p)).sum() / p.sum())


def relative_rms(x, restored):
    return np.linalg.norm(restored.astype(np.float64) - x) / np.linalg.norm(x.astype(np.float64))


@pytest.mark.parametrize(
    ("rho", "consecutive", "anchor"), [(0.8, 2.5, 0.813), (0.95, 10, 2.279), (0, 0.5, 0.5)]
)
def test_variance_ratios_of_autoregressive_channels(rho, consecutive, anchor):
    implied = implied_ratios({lag: rho**lag for lag in range(1, 10)})
    assert implied == pytest.approx((consecutive, anchor), abs=5e-4)
    x = ar1(rho, 8000, 16)
    pooled, median = variance_ratios(x)
    assert pooled == pytest.approx((consecutive, anchor), rel=0.04)
    assert median == pytest.approx((consecutive, anchor), rel=0.04)
    measured = autocorrelation(x, (*range(1, 10), 50))
    assert [measured[k] for k in range(1, 10)] == pytest.approx(
        [rho**k for k in range(1, 10)], abs=0.02
    )
    assert implied_ratios(measured) == pytest.approx(pooled, rel=0.01)


def test_anchor_deltas_by_hand():
    x = np.arange(30, dtype=np.float32)[:, None]
    pooled, median = variance_ratios(x)
    assert pooled.consecutive is None  # all deltas are 1
    # deltas 1 .. 9 thrice have variance 80 / 12, and 0 .. 29 has 899 / 12
    assert pooled.anchor == median.anchor == pytest.approx(899 / 80)
    # a tail of 2 tokens: deltas 1 .. 9 and 1
    deltas = [*range(1, 10), 1]
    tail = variance_ratios(x[:12])[0].anchor
    assert tail == pytest.approx(np.var(np.arange(12)) / np.var(deltas))
    steps = np.repeat(np.float32([3, 7, 12]), 10)[:, None]
    assert variance_ratios(steps)[0].anchor is None
    assert variance_ratios(x, group=1)[0].anchor is None


def test_anchor_deltas_of_codes_have_the_entropies_known():
    codes = np.arange(30)[None]
    anchored = (codes - codes // 10 * 10)[:, np.arange(30) % 10 > 0]
    assert entropies(codes, 30).pooled.plug_in == pytest.approx(log2(30))
    assert entropies(anchored, 10).pooled.plug_in == pytest.approx(log2(9))
    assert entropies(np.diff(codes), 2).pooled.plug_in == 0
    steps = np.repeat([3, 7, 12], 10)[None]
    assert entropies(steps, 13).pooled.plug_in == pytest.approx(log2(3))
    assert entropies(steps - np.repeat(steps[:, ::10], 10, axis=1), 1).pooled.plug_in == 0


def test_variances_ignore_channel_means_and_weigh_channels_by_variance():
    x = ar1(0.8, 2000, 8)
    moved = x + 1000 * np.arange(8, dtype=np.float32)
    assert variance_ratios(moved)[0] == pytest.approx(variance_ratios(x)[0], rel=1e-3)
    mixed = np.hstack([100 * x[:, :1], np.random.default_rng(1).standard_normal((2000, 4))])
    assert variance_ratios(mixed)[0].consecutive == pytest.approx(2.5, rel=0.1)
    assert variance_ratios(mixed)[1].consecutive == pytest.approx(0.5, rel=0.1)
    assert autocorrelation(mixed, [1])[1] == pytest.approx(0.8, abs=0.05)
    with_constant = np.hstack([x, np.full((2000, 1), 0.1, np.float32)])
    assert variance_ratios(with_constant)[1] == variance_ratios(x)[1]


def test_shuffling_removes_locality_and_keeps_each_channel():
    x = ar1(0.95, 4000, 16)
    null = shuffled(x, seed=3)
    np.testing.assert_array_equal(null, shuffled(x, seed=3))
    assert (null != shuffled(x, seed=4)).any()
    np.testing.assert_array_equal(np.sort(null, axis=0), np.sort(x, axis=0))
    assert null.dtype == x.dtype
    for ratios in variance_ratios(null):
        assert ratios == pytest.approx((0.5, 0.5), rel=0.04)
    assert list(autocorrelation(null, LAGS).values()) == pytest.approx([0] * len(LAGS), abs=0.02)
    # permuted independently: two equal channels come apart
    twins = shuffled(np.repeat(x[:, :1], 2, axis=1), seed=3)
    assert (twins[:, 0] != twins[:, 1]).any()


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 40))
def test_shuffling_keeps_entropies_by_channel(seed, channels, tokens):
    codes = np.random.default_rng(seed).integers(0, 9, (channels, tokens))
    before, after = entropies(codes, 9), entropies(shuffled(codes, seed, axis=1), 9)
    assert after.by_channel == before.by_channel
    assert after.pooled == before.pooled
    assert after.mdl_tables == before.mdl_tables
    across = entropies(shuffled(codes, seed, axis=0), 9)
    assert across.by_token == before.by_token  # so no control of it


def test_entropies_by_hand():
    found = entropies(np.repeat([[5], [9]], 8, axis=1), 10)
    assert found.pooled.plug_in == 1
    assert found.by_channel.plug_in == 0
    assert found.by_channel.gain == 1
    assert found.by_token.plug_in == 1
    assert found.mdl_tables == 0
    found = entropies(np.repeat(np.arange(4)[:, None], 4, axis=1), 4)
    assert [g.plug_in for g in (found.pooled, found.by_channel, found.by_token)] == [2, 0, 2]
    assert found.by_layer == found.pooled
    assert [found.pooled.gain, found.by_channel.gain, found.by_token.gain] == [0, 1, 0]
    # 16 codes of 4 symbols pooled, 4 of 4 by token
    assert found.pooled.corrected == pytest.approx(2 + 3 / (2 * 16 * np.log(2)))
    assert found.by_token.corrected == pytest.approx(2 + 3 / (2 * 4 * np.log(2)))
    assert found.shipped_tables == 66 * 8 / 4


def test_prices_of_tables():
    for symbols, expected in ((31, 0.469), (15, 0.219)):
        found = entropies((np.arange(256) % symbols)[None], 32)
        assert found.mdl_tables == pytest.approx(expected, abs=5e-4)
        assert found.shipped_tables == 2.0625


@pytest.mark.parametrize("tokens", [1, 255, 256, 257, 896, 1000])
def test_tables_are_those_that_the_shipped_layout_counts(tokens):
    codes = np.full((24, tokens), 15, np.uint8)
    objects = -(-tokens // 256)
    streams = 24 * objects * (4 + 1)  # a length and a byte each
    tables = CacheGen(32).shipped_bytes(codes) - streams - 2 * tokens
    assert entropies(codes, 32).shipped_tables == pytest.approx(8 * tables / codes.size)
    assert 8 * tables / codes.size == pytest.approx(8 * 66 * objects / tokens)


def test_tables_of_four_objects_cost_more_than_they_save():
    rng = np.random.default_rng(0)
    codes = (rng.integers(0, 8, (64, 896)) + 8 * (np.arange(64) % 4)[:, None]).astype(np.uint8)
    found = entropies(codes, 32)
    assert found.shipped_tables == pytest.approx(2.357, abs=1e-3)
    saved = found.pooled.corrected - found.in_objects
    assert 2 < saved < found.shipped_tables  # a quarter of the symbols in each channel
    parts = [
        (entropies(codes[:, at : at + 256], 32), min(256, 896 - at)) for at in range(0, 896, 256)
    ]
    by_hand = sum(part.by_channel.plug_in * n for part, n in parts) / 896
    assert found.in_objects == pytest.approx(by_hand)
    short = entropies(codes[:, :200], 32)
    assert short.in_objects == pytest.approx(short.by_channel.plug_in)


def test_entropies_of_several_layers():
    rng = np.random.default_rng(0)
    low, high = rng.integers(0, 4, (8, 500)), rng.integers(4, 8, (8, 500))
    both = layer_entropies([low, high], 8)
    alone = [entropies(codes, 8) for codes in (low, high)]
    assert both.pooled.plug_in == pytest.approx(3, abs=0.01)
    for grouping, by in ((both.by_layer, "pooled"), (both.by_channel, "by_channel")):
        parts = [getattr(one, by) for one in alone]
        assert grouping.plug_in == pytest.approx(np.mean([part.plug_in for part in parts]))
        assert grouping.corrected == pytest.approx(np.mean([part.corrected for part in parts]))
    assert both.by_layer.gain == pytest.approx(1 / 3, abs=0.01)
    together = entropies(np.vstack([low, high]), 8)
    assert both.by_token == together.by_token
    assert both.mdl_tables == pytest.approx(together.mdl_tables)


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 5), st.integers(1, 20))
def test_finer_groups_never_cost_more_by_plug_in(seed, layers, channels, tokens):
    rng = np.random.default_rng(seed)
    codes = [rng.integers(0, 6, (channels, tokens)).astype(np.uint8) for _ in range(layers)]
    found = layer_entropies(codes, 6)
    assert 0 <= found.by_channel.plug_in <= found.by_layer.plug_in + 1e-9
    assert found.by_layer.plug_in <= found.pooled.plug_in + 1e-9
    assert found.by_token.plug_in <= found.pooled.plug_in + 1e-9
    for grouping in found[:4]:
        assert grouping.plug_in <= grouping.corrected


def test_noise_seems_to_gain_from_grouping_by_channel():
    rng = np.random.default_rng(0)
    for half, pooled, channel in ((15, 4.187, 4.104), (7, 3.096, 3.057)):
        x = rng.standard_normal((256, 1024)).astype(np.float32)
        found = entropies(shipped_codes(x, half), 2 * half + 2)
        assert found.pooled.plug_in == pytest.approx(pooled, abs=5e-4)
        assert found.by_channel.plug_in == pytest.approx(channel, abs=5e-4)
        assert found.shipped_tables == 2.0625
        # the correction takes most of that gain back
        assert 0 < found.by_channel.corrected_gain < 0.3 * found.by_channel.gain


@pytest.mark.parametrize(("tokens", "step"), [(256, 0.25), (900, 0.5), (128, 1.0)])
def test_miller_madow_is_near_the_truth_for_noise(tokens, step):
    codes, n_symbols, truth = rounded_normal(step, tokens, 512)
    found = entropies(codes, n_symbols)
    assert truth - found.by_channel.plug_in > 3 * abs(truth - found.by_channel.corrected)
    assert found.by_channel.corrected == pytest.approx(truth, abs=0.02)
    assert found.pooled.corrected == pytest.approx(truth, abs=0.01)
    null = entropies(shuffled(codes, 1, axis=0), n_symbols)
    assert null.by_channel.plug_in == pytest.approx(found.by_channel.plug_in, abs=0.005)


@pytest.mark.parametrize("third", [0, 1, 2])
@pytest.mark.parametrize("rho", [0.0, 0.8, 0.98])
def test_designs_are_compared_at_equal_error(rho, third):
    x = ar1(rho, 905, 24)
    paper = paper_design(x, third)
    assert paper.restored.shape == x.shape and paper.restored.dtype == np.float32
    for design in DESIGNS:
        found = design(x, paper.relative_error)
        assert found.relative_error == pytest.approx(paper.relative_error, rel=0.01)
        assert relative_rms(x, found.restored) == pytest.approx(found.relative_error, rel=1e-3)
        assert 0 < found.plug_in < found.corrected
    assert relative_rms(x, paper.restored) == pytest.approx(paper.relative_error, rel=1e-3)


@pytest.mark.parametrize("third", [0, 1, 2])
def test_paper_design_by_a_loop(third):
    x = ar1(0.9, 47, 6)
    found = paper_design(x, third)
    deltas, anchors = [], []
    for t in range(len(x)):
        scale = np.float64(np.float32(np.abs(x[t].astype(np.float64)).max() / 127))
        anchors.append(np.rint(x[t] / scale))  # any token might be one
        assert np.abs(anchors[-1]).max() == 127
        if t % 10 == 0:
            anchor = anchors[-1] * scale
            np.testing.assert_allclose(found.restored[t], anchor, rtol=1e-6)
        else:
            deltas.append(x[t] - anchor)
    step = (0.5, 1.0, 1.5)[third] * np.std(deltas)
    assert found.step == pytest.approx(step, rel=1e-6)
    codes = np.rint(np.array(deltas) / found.step)
    followers = np.arange(len(x)) % 10 > 0
    restored = np.repeat(found.restored[::10], 10, axis=0)[: len(x)][followers]
    restored = restored + codes * found.step
    np.testing.assert_allclose(found.restored[followers], restored, rtol=1e-5, atol=1e-6)
    bits = 0.0
    corrected = 0.0
    for stream, coded in ((np.array(anchors), 5), (codes, 42)):
        for channel in (stream - stream.min()).astype(int).T:
            one = entropies(channel[None], int(stream.max() - stream.min()) + 1)
            bits += one.pooled.plug_in * coded
            corrected += one.pooled.corrected * coded
    assert (found.plug_in, found.corrected) == pytest.approx((bits / x.size, corrected / x.size))


@pytest.mark.parametrize("tokens", [312, 896])
def test_anchors_of_few_tokens_take_what_they_take_of_many(tokens):
    """Thirty anchors a channel show no more than log2 30 of their 8 bits, a tenth of the tokens."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20000, 32)).astype(np.float32)
    truth = paper_design(x, 2).corrected
    starts = range(0, len(x) - tokens, tokens)
    few = [paper_design(x[start : start + tokens], 2).corrected for start in starts]
    assert np.mean(few) == pytest.approx(truth, abs=0.03)


def test_closed_loop_equals_a_loop_and_its_error_does_not_accumulate():
    x = ar1(0.95, 3000, 8)
    found = consecutive_design(x, 0.05)
    means = x.mean(axis=0, dtype=np.float64).astype(np.float32)
    restored, codes = np.zeros_like(x, np.float64), []
    last = means.astype(np.float64)
    for t in range(len(x)):
        codes.append(np.rint((x[t] - last) / found.step))
        last = restored[t] = last + codes[-1] * found.step
    np.testing.assert_allclose(found.restored, restored, atol=1e-4)
    lowest = int(np.min(codes))
    one = entropies((np.array(codes).astype(int) - lowest).T, int(np.ptp(codes)) + 1)
    assert found.plug_in == pytest.approx(one.by_channel.plug_in)
    assert found.corrected == pytest.approx(one.by_channel.corrected)
    error = np.abs(found.restored - x)
    assert error.max() <= found.step / 2 * (1 + 1e-3)
    assert np.square(error[-500:]).mean() == pytest.approx(np.square(error[:500]).mean(), rel=0.1)


def test_consecutive_deltas_pay_where_tokens_are_alike_only():
    alike, unlike = ar1(0.98, 2000, 16), ar1(0.0, 2000, 16)
    raw, delta = (design(alike, 0.02) for design in DESIGNS)
    assert delta.plug_in < raw.plug_in - 1
    raw, delta = (design(unlike, 0.02) for design in DESIGNS)
    assert delta.plug_in > raw.plug_in + 0.3
    assert raw.step == delta.step
    np.testing.assert_array_equal(raw.restored, delta.restored)


def test_gaussian_noise_takes_the_bits_of_its_rate():
    x = np.random.default_rng(0).standard_normal((20000, 4)).astype(np.float32)
    found = raw_design(x, 0.01)
    # uniform rounding with ideal coding is 1/2 log2(2 pi e / 12) above the rate of the error
    assert found.step == pytest.approx(0.01 * sqrt(12), rel=0.01)
    assert found.corrected == pytest.approx(log2(1 / 0.01) + 0.254, abs=0.02)


@pytest.mark.parametrize("target", [0.3, 0.6, 0.9, 0.99])
def test_errors_near_that_of_the_means_are_met(target):
    x = np.random.default_rng(0).standard_t(3, (400, 16)).astype(np.float32)
    for design in DESIGNS:
        assert design(x, target).relative_error == pytest.approx(target, rel=0.01)


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 6), st.floats(0.01, 0.99))
def test_errors_are_met_beside_outliers(seed, tokens, channels, target):
    x = np.random.default_rng(seed).standard_t(1.2, (tokens, channels)).astype(np.float32)
    x[0] *= 1000
    for design in DESIGNS:
        found = design(x, target)
        assert found.relative_error <= 1.01 * target
        assert found.step == 0 or found.relative_error >= 0.99 * target


def test_means_alone_are_enough_for_a_large_error():
    x = ar1(0.5, 100, 4)
    for design in DESIGNS:
        found = design(x, 2.0)
        assert (found.plug_in, found.corrected, found.step) == (0, 0, 0)
        assert found.relative_error < 2


def test_one_token():
    x = np.float32([[1, -2, 3]])
    assert variance_ratios(x) == ((None, None), (None, None))
    assert autocorrelation(x, LAGS) == dict.fromkeys(LAGS)
    assert implied_ratios(autocorrelation(x, range(1, 10))) == (None, None)
    np.testing.assert_array_equal(shuffled(x, 0), x)
    paper = paper_design(x, 0)
    assert (paper.plug_in, paper.step) == (0, 0)
    np.testing.assert_allclose(paper.restored, x, atol=3 / 254)
    for design in DESIGNS:
        np.testing.assert_array_equal(design(x, 0.1).restored, x)
    found = entropies(np.array([[1], [2]]), 3)
    assert found.pooled.plug_in == 1
    assert found.by_channel.plug_in == found.mdl_tables == 0


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3])
def test_constant_channels(value):
    x = np.full((25, 3), value, np.float32)
    assert variance_ratios(x) == ((None, None), (None, None))
    assert autocorrelation(x, LAGS) == dict.fromkeys(LAGS)
    paper = paper_design(x, 2)
    assert paper.plug_in == 0
    np.testing.assert_allclose(paper.restored, x, rtol=1e-6)
    for design in DESIGNS:
        found = design(x, paper.relative_error)
        assert (found.plug_in, found.relative_error) == (0, 0)
        np.testing.assert_array_equal(found.restored, x)
    found = entropies(np.full((3, 25), 4), 9)
    for grouping in found[:4]:
        assert grouping == (0, 0, None, None)


def test_lags_and_gaps():
    found = autocorrelation(ar1(0.5, 10, 3), (0, 9, 10, 100))
    assert found[0] == pytest.approx(1)
    assert found[9] is not None
    assert found[10] is found[100] is None
    assert implied_ratios({1: 0.5}) == (1, None)
    assert implied_ratios(dict.fromkeys(range(1, 10), 1.0)) == (None, None)
    assert implied_ratios({}) == (None, None)


def test_far_apart_codes_take_no_table_of_what_lies_between():
    x = np.random.default_rng(0).standard_normal((50, 40)).astype(np.float32)
    x[0] = 1e9
    found = raw_design(x, 1e-10)
    assert 0 < found.plug_in <= log2(50)


def test_what_cannot_be_used():
    x = np.zeros((4, 2), np.float32)
    for call in (variance_ratios, lambda x: autocorrelation(x, [1]), lambda x: paper_design(x, 0)):
        for wrong in (x[0], x[:0], x[:, :0]):
            with pytest.raises(UsageError, match="tokens, channels"):
                call(wrong)
        with pytest.raises(InputError, match="NaN"):
            call(np.full_like(x, np.nan))
    with pytest.raises(UsageError, match="lags"):
        autocorrelation(x, [-1])
    with pytest.raises(UsageError, match="third"):
        paper_design(x, 3)
    with pytest.raises(UsageError, match="above 0"):
        raw_design(ar1(0.5, 9, 2), 0.0)
    one = np.zeros((2, 5), np.int64)
    for layers in ([], [one, one[:, :4]], [one - 1], [one + 3], [one[0]], [one[:, :0]]):
        with pytest.raises(UsageError, match="codes 0 to 2"):
            layer_entropies(layers, 3)
