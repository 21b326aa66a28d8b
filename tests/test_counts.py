"""Counting on the host and on MLX's device, beside counting one by one."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachegen_cli.device import mx, on_cpu

from cachegen_cli.coding.counts import edge_places, host_counts, segment_starts  # isort: skip
from cachegen_cli.coding import device_counts
from cachegen_cli.coding.device_counts import DeviceCounts
from cachegen_cli.coding.statistics import statistics, symbols_of
from cachegen_cli.quantizing import quantized
from cachegen_cli.results.settings import Settings
from cachegen_cli.rows import Context

from made import layer  # isort: skip


def codes_of(heads, dim, tokens, bits, seed=0):
    rng = np.random.default_rng(seed)
    spread = rng.uniform(0, 2**bits / 2, (heads, dim, 1))
    codes = rng.normal(2**bits / 2, spread, (heads, dim, tokens))
    return np.clip(codes, 0, 2**bits - 1).astype(np.uint8)


def pairs_of(symbols: np.ndarray, low: int, n: int) -> np.ndarray:
    """Counted one by one."""
    found = np.zeros((n, n), np.int64)
    for row in symbols.astype(int).tolist():
        for (before, after), count in Counter(pairwise(row)).items():
            found[before - low, after - low] += count
    return found


SHAPES = [
    (1, 1, 1, 4), (2, 3, 2, 4), (2, 5, 37, 1), (1, 4, 700, 4), (3, 64, 300, 8), (3, 64, 300, 2),
    (8, 128, 80, 5), (1, 2, 5000, 3), (2, 5, 37, 8), (4, 16, 2000, 7), (2, 64, 600, 4),
]  # fmt: skip


@pytest.mark.parametrize(("heads", "dim", "tokens", "bits"), SHAPES)
def test_counts_are_those_of_counting_one_by_one(heads, dim, tokens, bits, monkeypatch):
    codes = codes_of(heads, dim, tokens, bits)
    channels, top = codes.reshape(-1, tokens), 2**bits - 1
    deltas = symbols_of(channels, True)
    ways = [host_counts(codes, bits), DeviceCounts(mx.array(codes), bits).read()]
    monkeypatch.setattr(device_counts, "_kernel", lambda n: None)  # on CUDA scatter-adds, too
    ways.append(DeviceCounts(mx.array(codes), bits).read())
    for counts in ways:
        found = counts.histograms
        for channel, (raw, delta) in enumerate(
            zip(found.raw.reshape(len(channels), -1), found.delta.reshape(len(channels), -1),
                strict=True)
        ):  # fmt: skip
            assert raw.tolist() == np.bincount(channels[channel], minlength=top + 1).tolist()
            assert (
                delta.tolist() == np.bincount(deltas[channel] + top, minlength=2 * top + 1).tolist()
            )
        # of more pairs than symbols nobody has to know
        if counts.raw_pairs is not None:
            assert (counts.raw_pairs == pairs_of(channels, 0, top + 1)).all()
        else:
            assert int(np.ptp(codes)) + 1 > codes.size**0.5
        if counts.delta_pairs is not None:
            assert (counts.delta_pairs == pairs_of(deltas, -top, 2 * top + 1)).all()
        places = edge_places(len(channels), tokens)
        assert (counts.edges == channels[:, places]).all()
        for n in (2, 5, 300):
            starts = segment_starts(len(channels), tokens, n)
            for at in (starts, starts[1:] - 1):
                assert (counts.symbols_at(at, True) == deltas[:, at]).all()
                assert (counts.symbols_at(at, False) == channels[:, at]).all()


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 8),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 400),
    st.integers(0, 99),
)
def test_host_and_device_count_alike(bits, heads, dim, tokens, seed):
    codes = codes_of(heads, dim, tokens, bits, seed)
    host, device = host_counts(codes, bits), DeviceCounts(mx.array(codes), bits).read()
    for mine, other in zip(statistics(host), statistics(device), strict=True):
        assert (mine.low, mine.ideal_bytes) == (other.low, other.ideal_bytes)
        assert (mine.channel == other.channel).all() and (mine.first == other.first).all()
        assert (mine.pairs is None) == (other.pairs is None)
        assert mine.pairs is None or (mine.pairs == other.pairs).all()


def test_where_the_kernel_cannot_be_compiled_scatter_adds_count(monkeypatch):
    codes = codes_of(2, 8, 300, 4)
    monkeypatch.setattr(device_counts, "on_cuda", lambda: True)

    def broken(*args):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(mx.fast, "cuda_kernel", broken)
    device_counts._kernel.cache_clear()
    try:
        found = DeviceCounts(mx.array(codes), 4).read()
    finally:
        device_counts._kernel.cache_clear()
    assert (found.histograms.raw == host_counts(codes, 4).histograms.raw).all()


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)])
def test_nothing_is_counted_of_no_codes(shape):
    codes = np.zeros(shape, np.uint8)
    for counts in (host_counts(codes, 4), DeviceCounts(mx.array(codes), 4).read()):
        assert counts.tokens == shape[2] and not counts.histograms.raw.sum()


@pytest.mark.parametrize("tokens", [1, 2, 31, 33, 100, 1000])
@pytest.mark.parametrize("channels", [1, 5, 4096])
def test_every_start_of_a_segment_is_an_edge(channels, tokens):
    places = set(edge_places(channels, tokens).tolist())
    for n in range(2, 512):
        for start in segment_starts(channels, tokens, n).tolist():
            assert {max(start - before, 0) for before in range(3)} <= places


@pytest.mark.parametrize(
    ("scheme", "bits"),
    [("group", 2), ("group", 4), ("group", 8), ("cachegen", 4), ("exact", 4), ("uniform", 4)],
)
def test_a_gpu_finds_the_codes_and_sizes_of_the_cpu(scheme, bits):
    """The GPU's part needs one; on a CPU both are the same device."""
    kv = layer(700)
    chosen = Settings(bits, bits, scheme=scheme)
    mine = quantized(kv, 0, 1, chosen, Context())
    with mx.stream(mx.cpu):
        other = quantized(kv, 0, 1, chosen, Context())
    for one, two in zip(mine, other, strict=True):
        a, b = one.planes[0].codes, two.planes[0].codes
        assert (a != b).mean() <= 1e-5
        assert np.abs(a.astype(int) - b).max() <= 1
        if (a == b).all():
            assert one.result().coded_bytes == two.result().coded_bytes
    assert on_cpu() or scheme == "uniform" or mine[0].planes[0].counts is not None
