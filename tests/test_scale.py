"""What may not grow: memory beside the cache, and how often a layer is read."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from cachegen_cli.device import mx

from cachegen_cli import analyze, capture, load_model, sweep  # isort: skip
from cachegen_cli.filed import FiledLayers, capture_file
from cachegen_cli.kvcache import make_cache, read_cache, save_cache
from cachegen_cli.measuring import measure
from cachegen_cli.parallel import ahead
from cachegen_cli.results.settings import Settings

from made import layer  # isort: skip


@pytest.fixture(scope="module")
def long(captured):
    """A capture of three long layers."""
    from dataclasses import replace

    layers = tuple(layer(4096, 8, 64, place) for place in range(3))
    return replace(captured, layers=layers, tokens=(), loaded=None)


@pytest.mark.parametrize(
    ("scheme", "bits"),
    [("uniform", 4), *((s, b) for s in ("group", "mlx", "cachegen", "exact") for b in (2, 4, 8))],
)
def test_memory_beside_the_cache_is_that_of_two_tensors_at_most(long, scheme, bits):
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    measure(long, Settings(bits, bits, scheme=scheme))
    in_float32 = 4 * long.layers[0].keys.size
    assert mx.get_peak_memory() - before <= 2 * in_float32


def test_blocks_do_not_show_in_sizes(long, monkeypatch):
    from cachegen_cli import blockwise

    for scheme in ("group:group_size=48", "mlx", "cachegen", "exact"):
        kept = {"keep_first": 5, "keep_last": 11}
        if scheme.startswith(("group", "mlx")):
            kept["bits"] = 3
        sizes = analyze(long, scheme=scheme, **kept).measurement
        with monkeypatch.context() as patch:
            patch.setattr(blockwise, "_BLOCKS", 1)
            whole = analyze(long, scheme=scheme, **kept).measurement
        assert sizes.totals.coded_bytes == whole.totals.coded_bytes
        for one, two in zip(sizes.layers, whole.layers, strict=True):
            for mine, other in ((one.keys, two.keys), (one.values, two.values)):
                assert mine.error_energy == pytest.approx(other.error_energy, rel=1e-4)
                assert mine.signal_energy == pytest.approx(other.signal_energy, rel=1e-4)
                assert mine.payload_bytes == other.payload_bytes
                assert mine.parameter_bytes == other.parameter_bytes


def test_energies_are_exact_over_millions_of_numbers(long):
    found = analyze(long, scheme="exact").measurement.layers[0].keys
    exact = np.square(np.array(long.layers[0].keys).astype(np.float64)).sum()
    assert found.signal_energy == pytest.approx(exact, rel=1e-4)
    step = analyze(long, scheme="group", bits=2).measurement.layers[0].keys
    assert 0 < step.error_energy < exact


def test_a_sweep_reads_a_file_no_oftener_than_an_analysis(long, tmp_path, monkeypatch):
    path = tmp_path / "long.safetensors"
    save_cache(path, make_cache(long.layers), {})
    read = Counter()
    whole = FiledLayers.__getitem__
    monkeypatch.setattr(
        FiledLayers, "__getitem__", lambda self, at: (read.update([at]), whole(self, at))[1]
    )
    found = sweep(capture_file(path), bits=(2, 4, 8), group_sizes=(32, 64))
    assert len(found.rows) == 6
    reads_of_six = sum(read.values())
    read.clear()
    analyze(capture_file(path))
    assert sum(read.values()) == reads_of_six


def test_ranges_are_found_once_for_all_widths(long, monkeypatch):
    from cachegen_cli.schemes import group

    calls = []
    whole = group.group_ranges
    monkeypatch.setattr(
        group, "group_ranges", lambda x, size: (calls.append(size), whole(x, size))[1]
    )
    analyze(long)
    once = len(calls)
    calls.clear()
    sweep(long, bits=(2, 3, 4, 5, 6, 7, 8))
    assert len(calls) == once


def test_entries_that_are_cast_are_let_go(llama):
    cache = make_cache([layer(64, place=0), layer(64, place=1)])
    layers, _ = read_cache(cache, mx.bfloat16, free=True)
    assert all(entry.keys is None and entry.values is None for entry in cache)
    assert [kv.keys.shape for kv in layers] == [(4, 64, 64)] * 2
    # a model that reads on keeps its cache
    live = capture(load_model(str(llama)), "abcdefghij" * 3, continuation=8).live
    assert all(entry.keys is not None for entry in live.cache)


def test_profile_of_a_run(cachegen, quick):
    done = cachegen("analyze", *quick, "--profile-run", "--json")
    timing = json.loads(done.out)["timing"]
    stages = ("load", "prefill", "quantize", "count", "code", "render", "total")
    assert {f"{stage}_seconds" for stage in stages} <= timing.keys()
    assert timing["peak_memory_bytes"] > timing["mlx_peak_memory_bytes"] > 0
    for stage in ("load", "prefill", "quantize", "count", "code", "render", "in all"):
        assert f"\n{stage}" in done.err or f"\n  {stage}" in done.err
    assert "peak memory: " in done.err
    assert "--profile-run" not in json.loads(done.out)["command"]
    assert cachegen("analyze", *quick, "--profile-run", "-q").err == ""


@pytest.mark.parametrize("command", ["sweep", "quality", "verify", "compare"])
def test_every_run_can_be_profiled(cachegen, llama, command):
    more = ("--schemes", "group,exact") if command == "compare" else ()
    done = cachegen(command, "--model", llama, "-p", "abc def ghi " * 6, *more, "--profile-run")
    assert done.code == 0 and "peak memory: " in done.err
    assert "\n  quantize" in done.err and "\n  code" in done.err


def test_stages_are_measured_without_being_asked_for(captured):
    timing = analyze(captured).run.timing
    assert all(timing[f"{stage}_seconds"] > 0 for stage in ("quantize", "count", "code"))
    assert "peak_memory_bytes" not in timing


def test_ahead_lets_go_of_what_is_done():
    """A tensor's codes may not live until the next one is counted."""
    import gc
    import weakref

    class Held:
        pass

    alive: list[weakref.ref] = []

    def jobs():
        for _ in range(6):
            held = Held()
            alive.append(weakref.ref(held))
            yield lambda held=held: None
            del held

    for _ in ahead(jobs(), 1):
        gc.collect()
        assert sum(ref() is not None for ref in alive) <= 3
