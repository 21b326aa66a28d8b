"""Prompt-cache files of every layout: read, written, converted, inspected, analysed."""

from __future__ import annotations

import json
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    load_prompt_cache,
    save_prompt_cache,
)

from cachegen_cli import (
    InputError,
    UsageError,
    analyze,
    capture,
    capture_file,
    convert,
    from_json,
    load_model,
    pack,
    render,
    to_json,
    unpack,
    verify,
    write_capture,
)
from cachegen_cli.kvcache import CacheFile, read_cache
from cachegen_cli.promptcache.described import describe

HEADS, DIM = 2, 32


def rows(tokens: int, seed: int, heads: int = HEADS, dim: int = DIM):
    return mx.random.normal((1, heads, tokens, dim), key=mx.random.key(seed)).astype(mx.float16)


def filled(cache, tokens: int, seed: int, steps=None):
    start = 0
    for step in steps or [tokens]:
        x, y = rows(tokens, seed), rows(tokens, seed + 1)
        cache.update_and_fetch(x[:, :, start : start + step], y[:, :, start : start + step])
        start += step
    return cache


def state():
    cache = ArraysCache(2)
    cache[0], cache[1] = mx.ones((1, 3, 8)), mx.zeros((1, 2, 4, 4))
    return cache


def every_class():
    return [
        filled(KVCache(), 40, 1),
        filled(RotatingKVCache(16, 4), 40, 2, [20, *[1] * 20]),
        filled(RotatingKVCache(16), 40, 3),
        filled(ChunkedKVCache(64), 40, 4),
        filled(QuantizedKVCache(32, 8), 40, 5),
        state(),
        CacheList(state(), filled(KVCache(), 40, 6)),
    ]


def valid(x, n):
    return x[..., :n, :]


def write_b(path, cache, metadata):
    """Layout B as mlx-lm 0.31 wrote it, by hand."""
    arrays, strings = {}, {f"1.{k}": v for k, v in metadata.items()}
    for i, c in enumerate(cache):
        name = type(c).__name__
        strings[f"2.{i}"] = name
        if name == "KVCache":
            arrays |= {f"{i}.0": valid(c.keys, c.offset), f"{i}.1": valid(c.values, c.offset)}
            strings[f"0.{i}"] = ""
        elif name == "RotatingKVCache":
            whole = c.offset >= c.keys.shape[2]
            arrays[f"{i}.0"] = c.keys if whole else valid(c.keys, c.offset)
            arrays[f"{i}.1"] = c.values if whole else valid(c.values, c.offset)
            for j, value in enumerate((c.keep, c.max_size, c.offset, c._idx)):
                strings[f"0.{i}.{j}"] = str(value)
        elif name == "ChunkedKVCache":
            arrays |= {f"{i}.0": valid(c.keys, c.offset), f"{i}.1": valid(c.values, c.offset)}
            strings |= {f"0.{i}.0": str(c.chunk_size), f"0.{i}.1": str(c.start_position)}
        elif name == "QuantizedKVCache":
            for j, part in enumerate((c.keys, c.values)):
                arrays |= {f"{i}.{j}.{k}": valid(x, c.offset) for k, x in enumerate(part)}
            for j, value in enumerate((c.offset, c.group_size, c.bits)):
                strings[f"0.{i}.{j}"] = str(value)
        elif name == "ArraysCache":
            arrays |= {f"{i}.{j}": x for j, x in enumerate(c.cache)}
            strings |= {f"0.{i}": "", f"2.{i}": "MambaCache"}
        else:
            assert name == "CacheList", f"write_b knows no {name}"
            strings |= {f"0.{i}.0.0": "ArraysCache", f"0.{i}.0.1": "KVCache"}
            strings |= {f"0.{i}.1.0": "", f"0.{i}.1.1": ""}
            arrays |= {f"{i}.0.{j}": x for j, x in enumerate(c[0].cache)}
            arrays |= {f"{i}.1.0": valid(c[1].keys, c[1].offset)}
            arrays |= {f"{i}.1.1": valid(c[1].values, c[1].offset)}
    mx.save_safetensors(str(path), arrays, strings)


def write_a(path, cache, metadata):
    arrays = {}
    for i, c in enumerate(cache):
        arrays |= {f"{i}_keys": valid(c.keys, c.offset), f"{i}_values": valid(c.values, c.offset)}
    mx.save_safetensors(str(path), arrays, metadata)


def write_c(path, cache, metadata):
    save_prompt_cache(str(path), cache, metadata)


def same(found, wanted):
    assert [kv.layer for kv in found] == [kv.layer for kv in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert mx.array_equal(one.keys, other.keys) and mx.array_equal(one.values, other.values)
        assert (one.tokens_seen, one.window, one.sinks) == (
            other.tokens_seen, other.window, other.sinks,
        )  # fmt: skip
        assert (one.stored is None) == (other.stored is None)


@pytest.mark.parametrize("metadata", [{}, {"model": "some/model", "tokens": "1 2 3"}])
@pytest.mark.parametrize("write", [write_b, write_c])
def test_every_class_reads_the_same_from_a_file(tmp_path, write, metadata):
    cache, path = every_class(), tmp_path / "c.safetensors"
    write(path, cache, metadata)
    found = capture_file(path)
    wanted, skipped = read_cache(cache, mx.float16)
    same(found.layers, wanted)
    assert [(s.entry, s.cache) for s in found.skipped] == [(s.entry, s.cache) for s in skipped]
    assert [(s.entry, s.cache) for s in skipped] == [(5, "ArraysCache"), ("6/0", "ArraysCache")]
    assert {k: v for k, v in metadata.items() if k != "tokens"} == found.metadata
    described = describe(path)
    assert described.layout == ("B" if write is write_b else "C")
    assert from_json(to_json(described)) == described
    by_place = {entry.entry: entry for entry in described.entries}
    for kv in wanted:
        entry = by_place[kv.layer]
        assert entry.tokens == kv.keys.shape[1] and entry.tokens_seen == kv.tokens_seen
        assert entry.keys == (1, HEADS, kv.keys.shape[1], DIM) == entry.values
        assert entry.valid_bytes <= entry.allocated_bytes


def test_layout_a(tmp_path):
    cache, path = [filled(KVCache(), 12, 1), filled(KVCache(), 12, 3)], tmp_path / "a.safetensors"
    write_a(path, cache, {"model": "m", "tokenizer_config": "{}"})
    found = capture_file(path)
    same(found.layers, read_cache(cache, mx.float16)[0])
    assert found.metadata == {"model": "m", "tokenizer_config": "{}"}
    assert describe(path).layout == "A"


@pytest.mark.parametrize("first", [write_a, write_b, write_c])
@pytest.mark.parametrize("layout", ["B", "C"])
def test_converted_files_hold_the_same(tmp_path, first, layout):
    cache = [filled(KVCache(), 12, 1)] if first is write_a else every_class()
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    first(one, cache, {"model": "m"})
    result = convert(one, two, layout)
    assert (result.layout, result.action, result.metadata) == (layout, "convert", {"model": "m"})
    # all that is padding can be left out, but not of a ring
    assert all(e.tokens == e.tokens_allocated for e in result.entries
               if e.tokens is not None and e.cache != "RotatingKVCache")  # fmt: skip
    same(capture_file(two).layers, capture_file(one).layers)
    if layout == "C":
        back, metadata = load_prompt_cache(str(two), return_metadata=True)
        assert metadata == {"model": "m"}
        same(read_cache(back, mx.float16)[0], capture_file(one).layers)


def test_mlx_lm_goes_on_from_a_converted_file(tmp_path):
    cache = [filled(RotatingKVCache(16, 4), 30, 2, [20, *[1] * 10])]
    write_c(tmp_path / "c.safetensors", cache, {})
    convert(tmp_path / "c.safetensors", tmp_path / "b.safetensors", "B")
    convert(tmp_path / "b.safetensors", tmp_path / "d.safetensors", "C")
    [back] = load_prompt_cache(str(tmp_path / "d.safetensors"))
    for one in (cache[0], back):
        one.update_and_fetch(rows(1, 9), rows(1, 10))
    same(read_cache([back], mx.float16)[0], read_cache(cache, mx.float16)[0])


def test_capture_writes_what_the_model_left(llama, tmp_path, cachegen):
    path = tmp_path / "c.safetensors"
    done = cachegen("capture", "--model", llama, "-p", "quiet night", "-o", path)
    assert done.code == 0 and "layout C" in done.out and f"Wrote {path}" in done.err
    model = load_model(str(llama))
    live = capture(model, "quiet night", keep_cache=True)
    found = capture_file(path)
    same(found.layers, live.layers)
    assert found.tokens == live.tokens
    assert all(kv.keys.dtype == mx.float16 for kv in found.layers)
    again = tmp_path / "b.safetensors"
    assert write_capture(live, again, "B").layout == "B"
    assert describe(path).prompt_tokens == len(live.tokens)
    assert {e.tokens_allocated for e in describe(path).entries} == {len(live.tokens)}
    with pytest.raises(UsageError, match="keeps no cache"):
        write_capture(capture(model, "quiet"), again)
    load_prompt_cache(str(path))


@pytest.mark.parametrize("write", [write_b, write_c])
def test_analysis_of_a_file(tmp_path, write, cachegen):
    cache, path = every_class(), tmp_path / "c.safetensors"
    write(path, cache, {})
    result = analyze(capture_file(path), bits=4)
    assert [row.label for row in result.measurement.layers] == ["0", "1", "2", "3", "4", "6/1"]
    stored = result.measurement.layers[4]
    assert stored.stored == "mlx 8 bits, groups of 32" and stored.keys.bits == 8
    assert stored.keys.relative_rms_error is None  # what its codes were before is not there
    assert from_json(to_json(result)) == result
    done = cachegen("analyze", "--prompt-cache-file", path)
    assert done.code == 0 and "entry" in done.out and "already" in " ".join(done.out.split())
    assert max(map(len, done.out.splitlines())) <= 80
    if write is write_c:
        assert result.measurement.layers[0].tokens_allocated == 256
        assert any(n.code == "padding-left-out" for n in result.run.warnings)
    assert verify(capture_file(path)).passed
    assert cachegen("sweep", "--prompt-cache-file", path, "--bits", "2,4").code == 0
    refused = cachegen("pack", "--prompt-cache-file", path, "-o", tmp_path / "x.cgkv")
    assert refused.code == 1 and "cannot be packed" in refused.err
    assert not (tmp_path / "x.cgkv").exists()


def test_growing_and_chunked_entries_are_packed_and_come_back(tmp_path):
    cache = [filled(KVCache(), 40, 1), filled(ChunkedKVCache(64), 40, 4)]
    write_c(tmp_path / "c.safetensors", cache, {"model": "m"})
    pack(tmp_path / "c.safetensors", tmp_path / "c.cgkv", analyze(
        capture_file(tmp_path / "c.safetensors"), scheme="exact").measurement.settings)  # fmt: skip
    unpack(tmp_path / "c.cgkv", tmp_path / "d.safetensors")
    found = capture_file(tmp_path / "d.safetensors")
    same(found.layers, read_cache(cache, mx.float16)[0])
    assert [kv.cache for kv in found.layers] == ["KVCache", "ChunkedKVCache"]


def test_quality_of_a_file_needs_model_and_text(llama, tmp_path, cachegen):
    path = tmp_path / "c.safetensors"
    text = "It was a quiet night on the river. " * 3
    cachegen("capture", "--model", llama, "-p", text, "-o", path)
    asked = ("quality", "--prompt-cache-file", path)
    assert "no continuation" in cachegen(*asked).err
    assert "needs the model" in cachegen(*asked, "-p", "abc def").err
    done = cachegen(*asked, "--model", llama, "-p", "Nobody came by.", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    live = capture(str(llama), text + "Nobody came by.", continuation=15)
    wanted = analyze(live, quality=True).measurement.quality
    # the file holds 16-bit values, the live cache float32
    assert found["quality"]["kl_nats"] == pytest.approx(wanted.kl_nats, rel=0.05)
    assert found["model"]["source"] == "file"
    compared = cachegen("compare", *asked[1:], "--model", llama, "-p", "Nobody came by.",
                        "--schemes", "group,uniform")  # fmt: skip
    assert compared.code == 0, compared.err
    assert cachegen(*asked, "--chat").code == 2
    assert cachegen("calibrate", *asked[1:], "-o", tmp_path / "p.safetensors").code == 2
    assert cachegen("capture", *asked[1:], "-o", tmp_path / "p.safetensors").code == 2


def broken(tmp_path, how):
    path = tmp_path / "b.safetensors"
    write_c(path, [filled(KVCache(), 40, 1), filled(RotatingKVCache(16), 40, 3)], {"model": "m"})
    data = path.read_bytes()
    if how == "empty":
        data = b""
    elif how == "cut":
        data = data[: len(data) // 2]
    elif how == "cut header":
        data = data[:100]
    elif how == "text":
        data = b"this is no safetensors file at all, but text" * 9
    elif how == "foreign":
        mx.save_safetensors(str(path), {"model.layers.0.weight": mx.zeros((2, 2))}, {"a": "b"})
        return path
    elif how == "class":
        data = data.replace(b'"1.0":"KVCache"', b'"1.0":"KVCachf"')
    elif how == "gaps":
        mx.save_safetensors(str(path), {"99999999.0": mx.zeros((1, 1, 2, 2))}, {"2.0": "KVCache"})
        return path
    elif how == "shapes":
        mx.save_safetensors(
            str(path), {"0.0": mx.zeros((1, 1, 2, 2)), "0.1": mx.zeros((1, 1, 3, 2))},
            {"2.0": "KVCache", "0.0": ""},
        )  # fmt: skip
        return path
    elif how == "integers":
        x = mx.zeros((1, 1, 2, 2), mx.int32)
        mx.save_safetensors(str(path), {"0.0": x, "0.1": x}, {"2.0": "KVCache", "0.0": ""})
        return path
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "how", ["empty", "cut", "cut header", "text", "foreign", "gaps", "shapes", "integers", "none"]
)
def test_files_that_are_no_prompt_caches(tmp_path, how, cachegen):
    path = tmp_path / "no.safetensors" if how == "none" else broken(tmp_path, how)
    with pytest.raises(InputError, match="prompt cache"):
        capture_file(path)
    done = cachegen("analyze", "--prompt-cache-file", path)
    assert done.code == 1 and "hint: " in done.err and "Traceback" not in done.err
    target = tmp_path / "t.safetensors"
    assert cachegen("convert", path, "-o", target).code == 1 and not target.exists()
    if how not in ("shapes", "integers"):
        assert cachegen("inspect", path).code == 1


def test_a_class_that_is_not_known_is_skipped(tmp_path, cachegen):
    path = broken(tmp_path, "class")
    found = capture_file(path)
    assert [(s.entry, s.cache) for s in found.skipped] == [(0, "KVCachf")]
    assert found.skipped[0].bytes > 0
    refused = cachegen("convert", path, "-o", tmp_path / "t.safetensors")
    assert refused.code == 1 and "class is not known" in refused.err


def test_inspect(tmp_path, cachegen):
    path = tmp_path / "c.safetensors"
    write_c(path, every_class(), {"model": "m"})
    table = cachegen("inspect", path)
    assert table.code == 0 and "layout C" in table.out and "6/1" in table.out
    assert max(map(len, table.out.splitlines())) <= 80
    assert render(describe(path), "csv").count("\n") == 9
    assert json.loads(cachegen("inspect", path, "--json").out)["entries"][0]["tokens"] == 40


def test_inspect_needs_no_mlx(tmp_path):
    path = tmp_path / "c.safetensors"
    write_c(path, every_class(), {})
    script = (
        "import sys; sys.argv = ['cachegen', 'inspect', sys.argv[1]]\n"
        "from cachegen_cli.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('mlx', 'mlx.core', 'mlx_lm', 'numpy', 'constriction') "
        "if m in sys.modules])"
    )
    run = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def peak_megabytes(*arguments):
    script = (
        "import atexit, resource, sys\n"
        "from cachegen_cli.__main__ import main\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "atexit.register(lambda: print(peak(), file=sys.stderr))\n"
        "main()"
    )
    run = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return int(done.stderr.splitlines()[-1]) / (1e6 if sys.platform == "darwin" else 1e3)


def test_a_large_file_needs_memory_for_an_entry(tmp_path):
    """400 MB, in entries of 16.8 MB."""
    path, small = tmp_path / "large.safetensors", tmp_path / "small.safetensors"
    x = np.random.default_rng(1).normal(size=(1, 8, 4096, 128)).astype(np.float16)
    for file, n, rows in ((path, 25, x), (small, 2, x[:, :, :50])):
        arrays = {f"{i}.{j}": mx.array(rows) for i in range(n) for j in (0, 1)}
        mx.save_safetensors(
            str(file), arrays, {f"2.{i}": "KVCache" for i in range(n)} | {"0.0": ""}
        )
    asked = ("analyze", "-q", "--prompt-cache-file")
    assert peak_megabytes(*asked, path) - peak_megabytes(*asked, small) < 200 + 2 * x.nbytes / 1e6


def test_options_of_a_prompt_make_no_sense_beside_a_file(tmp_path):
    write_c(tmp_path / "c.safetensors", [filled(KVCache(), 5, 1)], {})
    with pytest.raises(UsageError, match="has its prompt already"):
        analyze(capture_file(tmp_path / "c.safetensors"), "text")
    with pytest.raises(UsageError, match="no layout"):
        convert(tmp_path / "c.safetensors", tmp_path / "d.safetensors", "A")
    assert CacheFile.open(tmp_path / "c.safetensors").layout == "C"


def test_values_that_only_fill_a_place_are_left_out(tmp_path, cachegen):
    index = KVCache()
    index.update_and_fetch(rows(12, 5, heads=1), mx.zeros((1, 1, 12, 8), mx.float16))
    path = tmp_path / "c.safetensors"
    write_c(path, [CacheList(filled(KVCache(), 12, 1), index)], {})
    for scheme in ("group", "uniform", "exact", "cachegen"):
        found = analyze(capture_file(path), scheme=scheme)
        assert [row.role for row in found.measurement.layers] == ["kv", "index"]
        assert found.measurement.layers[1].values.elements == 0
        assert from_json(to_json(found)) == found
        assert [(s.entry, s.bytes) for s in found.run.skipped] == [("0/1", 2 * 12 * 8)]
        assert verify(capture_file(path), settings=found.measurement.settings).passed
    wide = cachegen("analyze", "--prompt-cache-file", path, "--wide")
    assert wide.code == 0 and "index" in wide.out


def test_batches_and_concatenated_entries_in_files(tmp_path, cachegen):
    from mlx_lm.models.cache import BatchRotatingKVCache, ConcatenateKVCache

    batch = BatchRotatingKVCache(16, [0, 3])
    for n in (20, 1):
        x = mx.random.normal((2, 2, n, 32), key=mx.random.key(n)).astype(mx.float16)
        batch.update_and_fetch(x, x)
    cache = [batch, filled(ConcatenateKVCache(), 9, 1)]
    path = tmp_path / "c.safetensors"
    write_c(path, cache, {})
    same(capture_file(path).layers, read_cache(cache, mx.float16)[0])
    table = cachegen("inspect", path)
    rows = [line for line in table.out.splitlines() if "  " in line]
    assert table.code == 0 and max(map(len, rows)) <= 80
    convert(path, tmp_path / "e.safetensors", "B")
    same(capture_file(tmp_path / "e.safetensors").layers, read_cache(cache, mx.float16)[0])
    convert(tmp_path / "e.safetensors", tmp_path / "f.safetensors", "C")
    again = load_prompt_cache(str(tmp_path / "f.safetensors"))
    for one, other in zip(load_prompt_cache(str(path)), again, strict=True):
        assert type(one) is type(other)
    same(read_cache(again, mx.float16)[0], read_cache(cache, mx.float16)[0])


@pytest.mark.parametrize("layout", ["B", "C"])
def test_padding_of_a_batch_is_not_valid(tmp_path, layout):
    from mlx_lm.models.cache import BatchKVCache

    batch = BatchKVCache([0, 5])
    x = mx.random.normal((2, 2, 20, 32), key=mx.random.key(1)).astype(mx.float16)
    batch.update_and_fetch(x, x)
    path = tmp_path / "one.safetensors"
    write_c(path, [batch], {})
    convert(path, tmp_path / "two.safetensors", layout)
    entry = describe(tmp_path / "two.safetensors").entries[0]
    assert entry.valid_bytes == 2 * 2 * (20 + 15) * 2 * 32
    assert entry.tokens == 20 and entry.cache == "BatchKVCache"
    found = capture_file(tmp_path / "two.safetensors")
    assert [(kv.layer, kv.keys.shape[1]) for kv in found.layers] == [("0#0", 20), ("0#1", 15)]
    same(found.layers, read_cache([batch], mx.float16)[0])


def test_layout_b_with_steps_until_0_28_0(tmp_path):
    cache, path = every_class()[:5], tmp_path / "b.safetensors"
    write_b(path, cache, {"model": "m"})
    arrays, strings = mx.load(str(path), return_metadata=True)
    for i in (1, 2):  # keep, max_size, step, offset, _idx
        strings |= {f"0.{i}.{j + 1}": strings[f"0.{i}.{j}"] for j in (3, 2)}
        strings[f"0.{i}.2"] = "256"
    strings |= {f"0.4.{j + 1}": strings[f"0.4.{j}"] for j in (2, 1, 0)} | {"0.4.0": "256"}
    mx.save_safetensors(str(path), arrays, strings)
    same(capture_file(path).layers, read_cache(cache, mx.float16)[0])
    assert [entry.tokens for entry in describe(path).entries] == [40, 16, 16, 40, 40]


def test_lists_without_names_until_0_31_0(tmp_path, cachegen):
    one, two = filled(KVCache(), 12, 1), filled(KVCache(), 12, 3)
    path = tmp_path / "b.safetensors"
    write_b(path, [one, CacheList(state(), two)], {})
    arrays, strings = mx.load(str(path), return_metadata=True)
    arrays = {name: x for name, x in arrays.items() if name.startswith("0.")}
    flat = (*state().cache, valid(two.keys, 12), valid(two.values, 12))
    arrays |= {f"1.{i}": x for i, x in enumerate(flat)}
    strings = {k: v for k, v in strings.items() if not k.startswith("0.1")} | {"0.1": ""}
    mx.save_safetensors(str(path), arrays, strings)
    found = capture_file(path)
    assert [kv.layer for kv in found.layers] == [0]
    assert [(s.entry, s.bytes) for s in found.skipped] == [(1, sum(x.nbytes for x in flat))]
    shown = cachegen("analyze", "--prompt-cache-file", path)
    assert shown.code == 0 and "did not save what its parts are" in " ".join(shown.out.split())
    assert [entry.tokens for entry in describe(path).entries] == [12, None]


def test_layout_a_without_metadata(tmp_path, cachegen):
    path = tmp_path / "a.safetensors"
    x = rows(7, 1)
    mx.save_safetensors(str(path), {"0_keys": x, "0_values": x})
    assert cachegen("inspect", path).code == 0
    assert cachegen("analyze", "--prompt-cache-file", path).code == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("_idx", 999), ("_idx", -3), ("keep", 99), ("max_size", 0), ("offset", -5), ("offset", 3.5)],
)
def test_impossible_numbers_are_refused(tmp_path, cachegen, name, value):
    cache = filled(RotatingKVCache(16, 4), 40, 2, [20, *[1] * 20])
    setattr(cache, name, value)
    path = tmp_path / "c.safetensors"
    write_c(path, [cache], {})
    done = cachegen("analyze", "--prompt-cache-file", path)
    assert done.code == 1 and "entry 0" in done.err
    growing = filled(KVCache(), 40, 1)
    for wrong in (-5, 300):
        growing.offset = wrong
        write_c(path, [growing], {})
        for command in (("inspect", path), ("analyze", "--prompt-cache-file", path)):
            assert cachegen(*command).code == 1


@pytest.mark.parametrize("write", [write_b, write_c])
def test_copies_in_a_file_are_warned_of(tmp_path, write):
    cache = [filled(KVCache(), 12, 1), filled(KVCache(), 12, 3), filled(KVCache(), 12, 1)]
    cache[2].keys = cache[0].keys * 1  # arrays of its own
    write(tmp_path / "c.safetensors", cache, {})
    [notice] = [n for n in capture_file(tmp_path / "c.safetensors").notices
                if n.code == "copied-entries"]  # fmt: skip
    assert "1 cache entry is an exact copy of others (2 of 0)" in notice.message
    cache[2].keys[:, 1, 11, 5] = 7
    write(tmp_path / "c.safetensors", cache, {})
    found = capture_file(tmp_path / "c.safetensors").notices
    assert "copied-entries" not in [notice.code for notice in found]
