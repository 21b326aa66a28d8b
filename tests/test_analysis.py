from __future__ import annotations

import re
from dataclasses import replace
from math import log

import mlx.core as mx
import numpy as np
import pytest
import reference

from cachegen_cli import (
    InputError,
    ModelError,
    UsageError,
    analyze,
    capture,
    layer_group_bits,
    load_model,
    sweep,
)
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.results.settings import Settings


def expected(x: mx.array, bits: int, group_size: int) -> dict[str, int]:
    """Byte figures of [H, T, D] from the reference, head by head."""
    found: dict[str, int] = {}
    for head in np.array(x.astype(mx.float32)):
        codes = reference.quantize(head, bits, group_size)[0]
        parts = {"fixed_bytes": reference.fixed_bytes(*head.shape, bits, group_size)}
        for delta in (False, True):
            for channel in (False, True):
                name = f"{'delta' if delta else 'raw'}_{'channel' if channel else 'pooled'}_bytes"
                parts[name] = reference.entropy_bytes(codes, bits, group_size, delta, channel)
        for name, size in parts.items():
            found[name] = found.get(name, 0) + size
    return found


@pytest.mark.parametrize("group_size", [7, 32, 500])
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_layers_equal_the_reference(captured, bits, group_size):
    result = analyze(captured, bits=bits, group_size=group_size)
    assert len(result.measurement.layers) == 4
    for layer, kv in zip(result.measurement.layers, captured.layers, strict=True):
        for tensor, x in ((layer.keys, kv.keys), (layer.values, kv.values)):
            numbers = expected(x, bits, group_size)
            assert tensor.fixed_bytes == numbers.pop("fixed_bytes")
            for name, size in numbers.items():
                assert abs(getattr(tensor, name) - size) <= len(x)
            assert tensor.elements == x.size and tensor.raw_bytes == 2 * x.size
            assert tensor.bits == bits


def test_error_is_that_of_the_reconstruction(captured):
    result = analyze(captured, bits=3)
    kv = captured.layers[1]
    x = np.array(kv.values.astype(mx.float32)).astype(np.float64)
    back = []
    for head in x:
        codes, scale, zero = reference.quantize(head, 3, 32)
        groups = np.arange(len(head)) // 32
        back.append(codes * scale[groups].astype(np.float64) + zero[groups])
    error = np.sqrt(((np.array(back) - x) ** 2).sum() / (x**2).sum())
    assert result.measurement.layers[1].values.relative_rms_error == pytest.approx(error, rel=1e-4)


def test_totals_are_the_sum_of_layers(result):
    measured = result.measurement
    for name in ("raw_bytes", "fixed_bytes", "entropy_bytes", "parameter_bytes", "elements"):
        by_layer = sum(getattr(layer.total, name) for layer in measured.layers)
        assert by_layer == getattr(measured.totals, name)
        assert by_layer == sum(getattr(tensor, name) for tensor in measured.tensors)


def test_delta_and_pooling_choose_among_the_four(captured):
    auto = analyze(captured, delta="auto").measurement.tensors
    for pooled, name in ((False, "channel"), (True, "pooled")):
        for delta, way in (("on", "delta"), ("off", "raw")):
            for tensor in analyze(captured, delta=delta, pooled=pooled).measurement.tensors:
                assert tensor.entropy_bytes == getattr(tensor, f"{way}_{name}_bytes")
                assert tensor.delta == (delta == "on")
    for tensor in auto:
        assert tensor.entropy_bytes == min(tensor.raw_channel_bytes, tensor.delta_channel_bytes)


def test_estimate_never_exceeds_fixed_width(captured):
    for row in sweep(captured, bits=range(1, 9), group_sizes=(8, 32)).rows:
        for tensor in row.tensors:
            assert tensor.entropy_bytes <= tensor.fixed_bytes
            assert tensor.delta_pooled_bytes <= tensor.fixed_bytes


def test_depth_schedule_and_separate_widths(captured):
    layers = analyze(captured, key_bits=6, value_bits=3, schedule="depth").measurement.layers
    assert [layer.keys.bits for layer in layers] == layer_group_bits(4, 6)
    assert [layer.values.bits for layer in layers] == layer_group_bits(4, 3)


def test_sweep_rows_equal_single_analyses(captured, swept):
    assert [(r.settings.key_bits, r.settings.group_size) for r in swept.rows] == [
        (2, 16), (8, 16), (2, 32), (8, 32),
    ]  # fmt: skip
    for row in swept.rows:
        alone = analyze(captured, bits=row.settings.key_bits, group_size=row.settings.group_size)
        assert row == alone.measurement


def test_run_says_what_was_measured(captured, result):
    model, prompt = result.run.model, result.run.prompt
    assert (model.layers, model.kv_heads, model.head_dim, model.dtype) == (4, 2, 16, "float16")
    assert prompt.tokens == prompt.tokens_given == 105
    assert result.measurement.layers[0].tokens == 105
    assert result.measurement.settings == Settings()
    stages = ("load", "prefill", "analysis", "quantize", "count", "code")
    assert result.run.timing.keys() == {f"{stage}_seconds" for stage in stages}


def test_cut_prompt(llama):
    result = analyze(str(llama), "abcdefgh" * 10, max_prompt_tokens=33)
    assert (result.run.prompt.tokens, result.run.prompt.tokens_given) == (33, 80)
    assert result.measurement.layers[0].tokens == 33


def test_one_token(llama):
    totals = analyze(str(llama), "a").measurement.totals
    assert totals.elements == 4 * 2 * 2 * 16
    assert totals.fixed_bytes == totals.elements // 2 + totals.parameter_bytes


def test_sliding_windows(sliding):
    result = analyze(str(sliding), "a b c d e " * 8)
    layers = result.measurement.layers
    assert [(la.cache, la.tokens, la.tokens_seen) for la in layers] == [
        ("RotatingKVCache", 24, 80), ("KVCache", 80, 80),
    ] * 2  # fmt: skip
    assert result.run.model.dtype == "bfloat16"


def test_loaded_model_is_used_again(llama):
    model = load_model(str(llama))
    assert analyze(model, "abc").measurement == analyze(str(llama), "abc").measurement


def test_model_without_kv(mamba):
    with pytest.raises(ModelError, match="no KV cache that can be analysed: 2 x ArraysCache"):
        analyze(str(mamba), "abc")


def test_non_finite_layer_is_named(captured):
    kv = captured.layers[2]
    bad = LayerKV(2, kv.cache, kv.keys, kv.values * float("inf"), kv.tokens_seen)
    with pytest.raises(InputError, match="layer 2's values hold NaN or infinite"):
        analyze(replace(captured, layers=(*captured.layers[:2], bad)))


def bias_warned_of(result) -> float | None:
    found = [n.message for n in result.run.warnings if n.code == "short-prompt"]
    return float(re.search(r"up to ([0-9.]+) bits", found[0])[1]) if found else None


def test_short_prompts_are_warned_of(captured):
    assert bias_warned_of(analyze(captured, bits=4)) == round(15 / (2 * log(2) * 105), 2)
    assert bias_warned_of(analyze(captured, bits=2)) is None  # 105 tokens > 16 x 4
    # pooled over a head's 16 channels there are 16 times as many symbols, of codes or deltas
    assert bias_warned_of(analyze(captured, bits=4, pooled=True)) is None
    assert bias_warned_of(analyze(captured, bits=4, delta="on")) == round(
        30 / (2 * log(2) * 105), 2
    )


def test_short_windows_are_warned_of(sliding):
    captured = capture(str(sliding), "a b c d e " * 40)
    assert bias_warned_of(analyze(captured, bits=4)) == round(15 / (2 * log(2) * 24), 2)


@pytest.mark.parametrize(
    "settings",
    [
        {"bits": 0}, {"key_bits": 9}, {"value_bits": -1}, {"group_size": 0},
        {"schedule": "deep"}, {"delta": "yes"}, {"prompt": "again"}, {"chat": True},
    ],
)  # fmt: skip
def test_bad_settings(captured, settings):
    with pytest.raises(UsageError):
        analyze(captured, **settings)


def test_bad_sweeps(captured):
    with pytest.raises(UsageError):
        sweep(captured, bits=())
    with pytest.raises(UsageError):
        sweep(captured, bits=(4, 9))


def test_lone_surrogates_are_no_prompt(llama):
    with pytest.raises(InputError, match="surrogates"):
        capture(str(llama), "\ud800")


def test_widths_of_a_sweep_are_measured_once(captured):
    assert len(sweep(captured, bits=(2, 2, 3), group_sizes=(32, 32)).rows) == 2


def test_groups_longer_than_the_prompt_cost_nothing(captured):
    huge = analyze(captured, group_size=10**12).measurement.totals
    assert huge == analyze(captured, group_size=105).measurement.totals


def test_empty_prompt(llama):
    with pytest.raises(InputError, match="empty"):
        capture(str(llama), "")


def test_means_and_deviations_over_texts(llama):
    import statistics

    texts = ["It was a quiet night. " * 4, "def f(x):\n    return x\n" * 5, "abc " * 20]
    found = analyze(str(llama), texts, bits=3, quality=True).measurement
    alone = [analyze(str(llama), text, bits=3, quality=True).measurement for text in texts]
    for name, of in (("coded_bits_per_element", "totals"), ("kl_nats", "quality")):
        values = [getattr(getattr(one, of), name) for one in alone]
        assert found.spread[name]["mean"] == pytest.approx(statistics.fmean(values))
        assert found.spread[name]["standard_deviation"] == pytest.approx(statistics.stdev(values))
    assert not alone[0].spread


def test_a_sweep_says_the_spread(llama):
    from cachegen_cli import render, sweep

    table = render(
        sweep(str(llama), ["It was a quiet night. " * 4, "abc " * 20], bits=(2, 4)), "table"
    )
    assert table.count("over 2 texts, mean ± standard deviation:") == 2
    assert max(map(len, table.splitlines())) <= 80
