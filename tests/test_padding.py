"""Rows of prompt-cache files that are no tokens, and tokens that no file counts."""

from __future__ import annotations

import json
from contextlib import contextmanager

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    load_prompt_cache,
    save_prompt_cache,
)
from processes import TEXT

from cachegen_cli import (
    InputError,
    analyze,
    capture,
    capture_file,
    convert,
    from_json,
    load_model,
    pack,
    to_json,
    unpack,
    verify,
    write_capture,
)
from cachegen_cli.kvcache import read_cache
from cachegen_cli.promptcache.arrays import Described
from cachegen_cli.promptcache.described import describe

DOUBTS = {"rows-not-known", "position-not-known"}
HOW = {"rows-by-trailing-zeros", "rows-by-another-entry"} | DOUBTS


def rows(tokens: int, seed: int = 0, dim: int = 64, dtype=mx.float16):
    return mx.random.normal((1, 2, tokens, dim), key=mx.random.key(seed)).astype(dtype)


def filled(cache, tokens: int, seed: int = 0, step: int = 512, dtype=mx.float16):
    """Filled as `cache_prompt` did until 0.19.0, in steps of 512 tokens."""
    keys, values = rows(tokens, 2 * seed, dtype=dtype), rows(tokens, 2 * seed + 1, dtype=dtype)
    for start in range(0, tokens, step):
        here = (..., slice(start, start + step), slice(None))
        cache.update_and_fetch(keys[here], values[here])
    return cache


def write_a(path, cache, max_kv_size=None):
    """Layout A as mlx-lm 0.18.1 wrote it: buffers as they are."""
    arrays = {f"{i}_keys": c.keys for i, c in enumerate(cache)}
    arrays |= {f"{i}_values": c.values for i, c in enumerate(cache)}
    mx.save_safetensors(str(path), arrays, {"model": "m", "max_kv_size": str(max_kv_size)})


def write_b(path, entries):
    """Layout B of (class, keys, values, numbers)."""
    arrays, strings = {}, {}
    for i, (name, keys, values, numbers) in enumerate(entries):
        arrays |= {f"{i}.0": keys, f"{i}.1": values}
        strings |= {f"2.{i}": name, f"0.{i}": ""} if not numbers else {f"2.{i}": name}
        strings |= {f"0.{i}.{j}": str(number) for j, number in enumerate(numbers)}
    mx.save_safetensors(str(path), arrays, strings)


def how(warnings):
    """What is said of rows, as (code, message)."""
    return [(notice.code, notice.message) for notice in warnings if notice.code in HOW]


def shapes(layers):
    return [(kv.keys.shape[1], kv.tokens_seen, kv.window, kv.sinks) for kv in layers]


def same(found, wanted):
    assert shapes(found) == shapes(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert mx.array_equal(one.keys, other.keys) and mx.array_equal(one.values, other.values)


def refused(path, tmp_path, words, cachegen, model=None):
    """Neither converted nor packed nor given to a model, and said beside every figure."""
    target = tmp_path / "refused.safetensors"
    for command in (
        ("convert", path, "-o", target),
        ("pack", "--prompt-cache-file", path, "-o", tmp_path / "refused.cgkv"),
        *([("quality", "--prompt-cache-file", path, "--model", model, "-p", TEXT)] * bool(model)),
    ):
        done = cachegen(*command)
        assert done.code == 1 and words in done.err and done.err.count("hint: ") == 1, done.err
        assert not target.exists() and not (tmp_path / "refused.cgkv").exists()
    [(code, message)] = how(describe(path).warnings)
    assert code in DOUBTS
    for command in (("inspect", path), ("analyze", "--prompt-cache-file", path)):
        done = cachegen(*command)
        assert done.code == 0 and message in done.err
    assert how(analyze(capture_file(path)).run.warnings) == [(code, message)]
    assert how(verify(capture_file(path)).run.warnings) == [(code, message)]
    inspected = json.loads(cachegen("inspect", path, "--json").out)
    assert code in [warning["code"] for warning in inspected["warnings"]]
    return code


@pytest.fixture
def padded(tmp_path):
    """70 tokens in buffers of 256 rows."""
    path = tmp_path / "a.safetensors"
    write_a(path, [filled(KVCache(), 70, seed) for seed in range(4)])
    return path


def test_zeros_of_growing_buffers_are_no_tokens(padded, tmp_path, cachegen):
    found = capture_file(padded)
    wanted, _ = read_cache([filled(KVCache(), 70, seed) for seed in range(4)], mx.float16)
    same(found.layers, wanted)
    said = [(
        "rows-by-trailing-zeros",
        "cache entries 0-3 (KVCache): 70 of 256 rows are tokens, by trailing zeros",
    )]  # fmt: skip
    result = analyze(found, bits=4)
    assert how(result.run.warnings) == said and result.run.prompt.tokens == 70
    totals = result.measurement.totals
    # a tensor: 70 tokens of 2 heads of 64 in half bytes, 3 groups with 4 bytes for each channel
    assert totals.fixed_bytes == 8 * (70 * 128 // 2 + 3 * 128 * 4) == 48128
    plain = tmp_path / "c.safetensors"
    save_prompt_cache(str(plain), [filled(KVCache(), 70, seed) for seed in range(4)], {})
    assert totals == analyze(capture_file(plain), bits=4).measurement.totals
    described = describe(padded)
    assert how(described.warnings) == said and from_json(to_json(described)) == described
    assert {(e.tokens, e.tokens_allocated, e.tokens_seen) for e in described.entries} == {
        (70, 256, 70)
    }
    assert described.valid_bytes == 8 * 70 * 128 * 2
    shown = cachegen("inspect", padded)
    assert said[0][1] in shown.err and said[0][1] in " ".join(shown.out.split())
    for layout in "BC":
        again = convert(padded, tmp_path / f"{layout}.safetensors", layout)
        assert how(again.warnings) == said
        assert {(e.tokens, e.tokens_allocated) for e in again.entries} == {(70, 70)}
        same(capture_file(tmp_path / f"{layout}.safetensors").layers, wanted)
    same(read_cache(load_prompt_cache(str(tmp_path / "C.safetensors")), mx.float16)[0], wanted)
    packed = pack(padded, tmp_path / "p.cgkv", analyze(found, scheme="exact").measurement.settings)
    assert how(packed.warnings) == said
    unpack(tmp_path / "p.cgkv", tmp_path / "u.safetensors")
    same(capture_file(tmp_path / "u.safetensors").layers, wanted)


def test_quality_reads_on_where_the_tokens_end(llama, tmp_path):
    model = load_model(str(llama))
    live = capture(model, TEXT, keep_cache=True)
    write_capture(live, tmp_path / "c.safetensors")
    half = [KVCache() for _ in live.cache]
    for cache, entry in zip(half, live.cache, strict=True):
        keys, values = (x[..., : entry.offset, :] for x in (entry.keys, entry.values))
        cache.update_and_fetch(keys.astype(mx.float16), values.astype(mx.float16))
    write_a(tmp_path / "a.safetensors", half)
    one, other = (
        analyze(capture_file(tmp_path / name, model, "And nobody came."), quality=True)
        for name in ("a.safetensors", "c.safetensors")
    )
    assert one.measurement.quality == other.measurement.quality
    assert len(how(one.run.warnings)) == 1


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_zeros_in_every_dtype(tmp_path, dtype):
    cache = [filled(KVCache(), 300, seed, dtype=dtype) for seed in (1, 2)]
    write_a(tmp_path / "a.safetensors", cache)
    found = capture_file(tmp_path / "a.safetensors")
    assert shapes(found.layers) == [(300, 300, 0, 0)] * 2
    assert how(found.notices)[0][1].endswith("300 of 512 rows are tokens, by trailing zeros")


def test_a_token_may_be_zero_in_some_entries(tmp_path):
    cache = [filled(KVCache(), 70, seed) for seed in range(3)]
    for x in (cache[1].keys, cache[1].values, cache[2].values):
        x[..., 60:, :] = 0
    cache[2].keys[..., 65:, :] = 0
    write_a(tmp_path / "a.safetensors", cache)
    found = capture_file(tmp_path / "a.safetensors")
    assert shapes(found.layers) == [(70, 70, 0, 0)] * 3
    assert "70 of 256" in how(found.notices)[0][1] and "from row 60 on" in how(found.notices)[0][1]
    write_b(
        tmp_path / "b.safetensors",
        [("KVCache", c.keys[..., :70, :], c.values[..., :70, :], ()) for c in cache],
    )
    found = capture_file(tmp_path / "b.safetensors")
    assert shapes(found.layers) == [(70, 70, 0, 0)] * 3 and not how(found.notices)
    assert not how(describe(tmp_path / "b.safetensors").warnings)


def test_nothing_but_zeros_tells_nothing(tmp_path, cachegen):
    empty = mx.zeros((1, 2, 256, 16), mx.float16)
    path = tmp_path / "a.safetensors"
    mx.save_safetensors(str(path), {"0_keys": empty, "0_values": empty})
    words = "how many of its rows are tokens is not known"
    assert refused(path, tmp_path, words, cachegen) == "rows-not-known"
    [entry] = describe(path).entries
    assert (entry.tokens, entry.tokens_seen, entry.tokens_allocated) == (None, None, 256)


@pytest.mark.parametrize("layout", ["A", "B", "C"])
def test_values_of_an_index_are_zero_by_design(tmp_path, layout):
    cache = filled(KVCache(), 70)
    path, x = tmp_path / "i.safetensors", cache.keys if layout == "A" else cache.keys[..., :70, :]
    if layout == "A":
        mx.save_safetensors(str(path), {"0_keys": x, "0_values": mx.zeros_like(x)})
    elif layout == "B":
        index = {"0.0.0": x, "0.0.1": x, "0.1.0": x[:, :1], "0.1.1": mx.zeros_like(x[:, :1])}
        names = {"2.0": "CacheList", "0.0.0.0": "KVCache", "0.0.0.1": "KVCache"}
        mx.save_safetensors(str(path), index, names | {"0.0.1.0": "", "0.0.1.1": ""})
    else:
        concatenated = ConcatenateKVCache()
        concatenated.update_and_fetch(x, mx.zeros_like(x))
        save_prompt_cache(str(path), [concatenated], {})
    found = capture_file(path)
    assert {kv.keys.shape[1] for kv in found.layers} == {70}
    assert len(how(found.notices)) == (layout == "A")


class TestChunks:
    """As 0.31.3 wrote 662 tokens: a chunk of 512 lost 256 and holds 406 in 512 rows."""

    keys, values = rows(662, 1), rows(662, 2)

    def chunk(self, start=256, valid=406, stored=512):
        end, more = start + valid, [(0, 0), (0, 0), (0, stored - valid), (0, 0)]
        kept = (mx.pad(x[..., start:end, :], more) for x in (self.keys, self.values))
        return ("ChunkedKVCache", *kept, (512, start))

    def whole(self, tokens=662):
        return ("KVCache", self.keys[..., :tokens, :], self.values[..., :tokens, :], ())

    @pytest.mark.parametrize("beside", [True, False])
    def test_rows_past_the_chunk(self, tmp_path, beside):
        path, target = tmp_path / "b.safetensors", tmp_path / "c.safetensors"
        write_b(path, [self.chunk(), *([self.whole()] if beside else [])])
        found = capture_file(path)
        by = "since entry 1 has seen as many" if beside else "by trailing zeros"
        said = f"cache entry 0 (ChunkedKVCache): 406 of 512 rows are tokens, of 662 seen, {by}"
        assert [message for _, message in how(found.notices)] == [said]
        assert shapes(found.layers)[0] == (406, 662, 512, 0)
        assert mx.array_equal(found.layers[0].keys, self.keys[0, :, 256:])
        entry = describe(path).entries[0]
        assert (entry.tokens, entry.tokens_allocated, entry.tokens_seen) == (406, 512, 662)
        assert entry.valid_bytes == 2 * 406 * 2 * 64 * 2
        assert [message for _, message in how(convert(path, target).warnings)] == [said]
        back = load_prompt_cache(str(target))[0]
        assert (back.offset, back.start_position, back.chunk_size) == (662, 256, 512)
        assert mx.array_equal(back.keys_and_values()[1], self.values[..., 256:, :])
        pack(path, tmp_path / "p.cgkv", analyze(found, scheme="exact").measurement.settings)
        unpack(tmp_path / "p.cgkv", tmp_path / "u.safetensors")
        same(capture_file(tmp_path / "u.safetensors").layers, found.layers)
        # mlx-lm to 0.31.3 would take 406 rows for 406 tokens, 256 of which are lost
        with pytest.raises(InputError, match="layout B has no place for a ChunkedKVCache"):
            convert(path, tmp_path / "d.safetensors", "B")

    def test_zeros_that_are_tokens_where_another_entry_tells(self, tmp_path):
        _, keys, values, numbers = self.chunk()
        keys[..., 400:, :], values[..., 400:, :] = 0, 0
        write_b(
            tmp_path / "b.safetensors", [("ChunkedKVCache", keys, values, numbers), self.whole()]
        )
        found = capture_file(tmp_path / "b.safetensors")
        assert shapes(found.layers)[0] == (406, 662, 512, 0)
        assert how(found.notices)[0][1].endswith("of which the last 6 are zero")

    def test_before_the_chunk_is_full_all_rows_are_tokens(self, tmp_path):
        write_b(tmp_path / "b.safetensors", [self.chunk(0, 300, 300), self.whole(300)])
        found = capture_file(tmp_path / "b.safetensors")
        assert shapes(found.layers) == [(300, 300, 512, 0), (300, 300, 0, 0)]
        assert not how(found.notices)

    def test_full_rows_need_no_zeros(self, tmp_path):
        write_b(tmp_path / "b.safetensors", [self.chunk(150, 512, 512)])
        assert shapes(capture_file(tmp_path / "b.safetensors").layers) == [(512, 662, 512, 0)]

    @pytest.mark.parametrize(
        ("start", "valid", "stored", "beside"),
        [
            (256, 406, 512, 300),  # fewer than the rows that are stored
            (256, 406, 512, 600),  # tokens in rows after those
            (256, 100, 512, None),  # fewer than 512 seen, of which 512 would be stored
            (248, 0, 20, 20),  # a step after a short prompt: all rows fell out
            (248, 0, 20, None),
        ],
    )
    def test_what_does_not_fit_is_not_known(self, tmp_path, start, valid, stored, beside, cachegen):
        path = tmp_path / "b.safetensors"
        write_b(path, [self.chunk(start, valid, stored), *([self.whole(beside)] if beside else [])])
        words = "cache entry 0 (ChunkedKVCache) cannot be"
        assert refused(path, tmp_path, words, cachegen) == "rows-not-known"
        assert describe(path).entries[0].tokens is None


def test_padding_that_others_left_in_layout_b(tmp_path):
    cache = filled(KVCache(), 70)
    quantized = filled(QuantizedKVCache(64, 8), 71)
    both = (quantized.keys, quantized.values)
    packed = {f"1.{i}.{j}": both[i][j][..., :71, :] for i in range(2) for j in range(3)}
    names = {"2.0": "KVCache", "0.0": "", "2.1": "QuantizedKVCache"}
    names |= {"0.1.0": "71", "0.1.1": "64", "0.1.2": "8"}
    arrays = {"0.0": cache.keys, "0.1": cache.values}
    mx.save_safetensors(str(tmp_path / "b.safetensors"), arrays | packed, names)
    found = capture_file(tmp_path / "b.safetensors")
    assert shapes(found.layers)[0] == (71, 71, 0, 0)
    [(code, message)] = how(found.notices)
    assert code == "rows-by-another-entry" and "since entry 1 has seen as many" in message
    mx.save_safetensors(str(tmp_path / "b.safetensors"), arrays, {"2.0": "KVCache", "0.0": ""})
    found = capture_file(tmp_path / "b.safetensors")
    assert shapes(found.layers) == [(70, 70, 0, 0)]
    assert [code for code, _ in how(found.notices)] == ["rows-by-trailing-zeros"]


RINGS = {"none of a buffer": (300, 1), "a buffer": (600, 513), "within one": (1000, 513)}
FULL = {
    "exactly full": (32, 32), "turned": (32, 513), "one step": (32, 40), "two steps": (32, 600),
    "grown": (600, 700), "grown, then cut": (600, 1125),
}  # fmt: skip


@pytest.mark.parametrize(
    ("window", "tokens"), [*RINGS.values(), (32, 20)], ids=[*RINGS, "no zeros"]
)
def test_a_ring_of_layout_a_that_is_not_full(tmp_path, window, tokens):
    cache = [filled(RotatingKVCache(window, 4), tokens, seed) for seed in (1, 2)]
    path, target = tmp_path / "a.safetensors", tmp_path / "c.safetensors"
    write_a(path, cache, window)
    found = capture_file(path)
    assert shapes(found.layers) == [(tokens, tokens, window, 4)] * 2
    same(found.layers, read_cache(cache, mx.float16)[0])
    zeros = cache[0].keys.shape[2] > tokens
    assert [code for code, _ in how(found.notices)] == ["rows-by-trailing-zeros"] * zeros
    assert {(e.cache, e.tokens) for e in describe(path).entries} == {("RotatingKVCache", tokens)}
    for layout in "BC":
        convert(path, target, layout)
        same(capture_file(target).layers, found.layers)
    back = load_prompt_cache(str(target))
    for step in range(40):  # on into the window, and around
        for one in (*cache, *back):
            one.update_and_fetch(rows(1, 100 + step), rows(1, 200 + step))
    same(read_cache(back, mx.float16)[0], read_cache(cache, mx.float16)[0])


@pytest.mark.parametrize(("window", "tokens"), FULL.values(), ids=FULL)
def test_a_full_ring_of_layout_a_has_lost_its_position(tmp_path, window, tokens, llama, cachegen):
    path = tmp_path / "a.safetensors"
    cache = []
    for seed in range(4):
        entry = RotatingKVCache(window, 4)
        for start in range(0, tokens, 512):
            x = rows(min(512, tokens - start), 9 * seed + start, dim=16)
            entry.update_and_fetch(x, x + 1)
        cache.append(entry)
    write_a(path, cache, window)
    words = "the positions of its rows are not known"
    assert refused(path, tmp_path, words, cachegen, llama) == "position-not-known"
    entry = describe(path).entries[0]
    assert (entry.cache, entry.tokens, entry.tokens_seen) == ("RotatingKVCache", window, None)
    found = capture_file(path, load_model(str(llama)))
    assert {kv.keys.shape[1] for kv in found.layers} == {window}
    wanted, _ = read_cache(cache, mx.float16)
    for kv, other in zip(found.layers, wanted, strict=True):
        # the rows are there, if not in order
        ordered = [sorted(x[0, :, 0].tolist()) for x in (kv.keys, other.keys)]
        assert ordered[0] == ordered[1]
    assert set(found.rotaries.values()) == {words}


def test_zeros_in_more_rows_than_a_ring_holds_do_not_fit(tmp_path, cachegen):
    path = tmp_path / "a.safetensors"
    write_a(path, [filled(KVCache(), 70)], 32)
    words = "how many of its rows are tokens is not known"
    assert refused(path, tmp_path, words, cachegen) == "rows-not-known"


@pytest.mark.parametrize("window", ["2", "0", "²", "9" * 5000])
def test_windows_that_hold_no_sinks(padded, tmp_path, window, cachegen):
    arrays = mx.load(str(padded))
    path = tmp_path / "w.safetensors"
    mx.save_safetensors(str(path), arrays, {"max_kv_size": window})
    done = cachegen("convert", path, "-o", tmp_path / "c.safetensors")
    assert done.code == (0 if window == "²" else 1) and "failed unexpectedly" not in done.err


def test_a_chunked_cache_that_mlx_lm_fills_goes_from_layout_to_layout(tmp_path):
    cache = ChunkedKVCache(64)
    for _ in range(5):
        cache.maybe_trim_front()
        filled(cache, 50)
    save_prompt_cache(str(tmp_path / "c.safetensors"), [cache], {})
    found = capture_file(tmp_path / "c.safetensors")
    same(found.layers, read_cache([cache], mx.float16)[0])
    assert not how(found.notices)


def test_only_the_end_of_a_file_is_read(padded, tmp_path, monkeypatch):
    sizes = []
    reader = Described.reader

    @contextmanager
    def counted(self):
        with reader(self) as read:
            yield lambda start, end: (sizes.append(end - start), read(start, end))[1]

    monkeypatch.setattr(Described, "reader", counted)
    describe(padded)
    row, zeros = 64 * 2, 186 * 64 * 2
    assert 16 * zeros <= sum(sizes) <= 16 * (2 * zeros + 2 * row)  # as much again at most
    convert(padded, tmp_path / "c.safetensors")
    sizes.clear()
    describe(tmp_path / "c.safetensors")
    assert sum(sizes) == 4 * 4  # the offset of each entry
