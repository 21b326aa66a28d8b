"""Prompt-cache files that are damaged, incomplete or another model's: told in words."""

from __future__ import annotations

import json
import struct

import mlx.core as mx
import pytest
from architectures import config_of
from mlx_lm.models.cache import KVCache, RotatingKVCache, save_prompt_cache
from processes import TEXT
from tiny import LLAMA, make_model

from cachegen_cli import InputError, capture_file, convert
from cachegen_cli.promptcache.described import describe


def filled(cache, tokens=20, dim=16):
    x = mx.random.normal((1, 2, tokens, dim), key=mx.random.key(tokens)).astype(mx.float16)
    cache.update_and_fetch(x, x + 1)
    return cache


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "c.safetensors"
    save_prompt_cache(str(path), [filled(KVCache()), filled(RotatingKVCache(16))], {"model": "m"})
    return path


def header_of(path):
    data = path.read_bytes()
    [n] = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + n]), data[8 + n :]


def with_header(path, table, rest):
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + rest)


def lose(path, arrays=(), metadata=()):
    found, strings = mx.load(str(path), return_metadata=True)
    for name in arrays:
        del found[name]
    for name in metadata:
        del strings[name]
    mx.save_safetensors(str(path), found, strings)


def refused(path, words, cachegen, tmp_path):
    for command in (
        ("inspect", path),
        ("analyze", "--prompt-cache-file", path),
        ("convert", path, "-o", tmp_path / "t.safetensors"),
    ):
        done = cachegen(*command)
        assert done.code == 1 and words in done.err, (command, done.err)
        assert done.err.count("error: ") == done.err.count("hint: ") == 1
        assert not (tmp_path / "t.safetensors").exists()


@pytest.mark.parametrize(
    ("arrays", "metadata", "words"),
    [
        (["0.0"], [], "the keys of a KVCache are missing"),
        (["1.1"], [], "the values of a RotatingKVCache are missing"),
        ([], ["1.1"], "does not say the class of entry 1"),
        ([], ["1.0"], "class"),
    ],
)
@pytest.mark.parametrize("layout", ["B", "C"])
def test_parts_that_are_missing(path, tmp_path, arrays, metadata, words, layout, cachegen):
    if layout == "B":
        convert(path, tmp_path / "b.safetensors", "B")
        path = tmp_path / "b.safetensors"
        metadata = [name.replace("1.", "2.", 1) for name in metadata]
    lose(path, arrays, metadata)
    refused(path, words, cachegen, tmp_path)


def test_headers_that_say_the_impossible(path, tmp_path, cachegen):
    table, rest = header_of(path)
    first, second = table["0.0"]["data_offsets"], table["0.1"]["data_offsets"]
    for changed, words in (
        (table | {"0.0": table["0.0"] | {"data_offsets": [-8, first[1] - first[0] - 8]}}, "before"),
        (table | {"0.0": table["0.0"] | {"data_offsets": second}}, "over each other"),
        (table | {"__metadata__": table["__metadata__"] | {"0.model": 5}}, "not all texts"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "no table"),
    ):
        with_header(path, changed, rest)
        refused(path, words, cachegen, tmp_path)
    path.write_bytes(b"abc")
    refused(path, "too short", cachegen, tmp_path)


def test_an_empty_list(tmp_path, cachegen):
    path = tmp_path / "none.safetensors"
    save_prompt_cache(str(path), [])
    refused(path, "it has no", cachegen, tmp_path)


def test_tokens_that_are_none(path):
    found, strings = mx.load(str(path), return_metadata=True)
    mx.save_safetensors(str(path), found, strings | {"0.tokens": "zzz"})
    assert describe(path).prompt_tokens == 0 and describe(path).metadata["tokens"] == "zzz"
    assert capture_file(path).tokens == ()


def test_floats_are_rounded_and_it_is_said(tmp_path, cachegen):
    path = tmp_path / "f.safetensors"
    cache = KVCache()
    x = mx.random.normal((1, 2, 20, 16), key=mx.random.key(1))
    cache.update_and_fetch(x, x)
    save_prompt_cache(str(path), [cache])
    done = cachegen("analyze", "--prompt-cache-file", path, "--json")
    assert "rounded-to-16-bits" in {w["code"] for w in json.loads(done.out)["warnings"]}
    assert "float32" in done.err


def test_caches_of_other_models_are_not_given_to_the_model(path, sliding, tmp_path, cachegen):
    wide = make_model(tmp_path / "wide", LLAMA | {"num_hidden_layers": 2, "head_dim": 32})
    own = tmp_path / "own.safetensors"
    save_prompt_cache(str(own), [filled(KVCache()) for _ in range(4)], {"model": "a/b"})
    for file, model, words in (
        (path, sliding, "it has 2 entries, the model 4"),
        (path, wide, "entry 0 is of 2 heads of 16"),
        (own, sliding, "entry 0 has no window"),
    ):
        asked = ("quality", "--prompt-cache-file", file, "--model", model, "-p", TEXT)
        done = cachegen(*asked)
        assert done.code == 1 and words in done.err and "not of this model" in done.err


def test_another_name_of_the_model_is_said(tmp_path, llama, cachegen):
    own = tmp_path / "own.safetensors"
    save_prompt_cache(str(own), [filled(KVCache()) for _ in range(4)], {"model": "a/b"})
    asked = ("quality", "--prompt-cache-file", own, "--model", llama, "-p", TEXT)
    done = cachegen(*asked)
    assert done.code == 0 and "the file says that 'a/b' made it" in done.err


def test_layout_b_of_windows_is_for_later_versions(path, tmp_path, cachegen):
    done = cachegen("convert", path, "--layout", "B", "-o", tmp_path / "b.safetensors")
    assert "of mlx-lm 0.28.1 to 0.31.3" in " ".join(done.out.split())


def test_nothing_to_analyse_has_a_hint(tmp_path, cachegen):
    path = tmp_path / "e.safetensors"
    save_prompt_cache(str(path), [KVCache()])
    done = cachegen("analyze", "--prompt-cache-file", path)
    assert done.code == 1 and "hint: 'cachegen inspect'" in done.err


def test_warnings_of_a_capture_are_in_its_json(llama, tmp_path, cachegen):
    out = tmp_path / "c.safetensors"
    done = cachegen(
        "capture", "--model", llama, "-p", TEXT, "--max-kv-size", 16, "-o", out, "--json"
    )
    codes = {w["code"] for w in json.loads(done.out)["warnings"]}
    assert codes and "warning: " in done.err


def test_rows_of_a_file_are_entries(path, cachegen):
    assert cachegen("analyze", "--prompt-cache-file", path).out.splitlines()[3].startswith("entry")


def test_shards_need_processes(llama, path, cachegen):
    alone = cachegen("analyze", "--model", llama, "-p", "abc", "--shard", "tensor")
    assert alone.code == 2 and "mlx.launch" in alone.err
    filed = cachegen("analyze", "--prompt-cache-file", path, "--shard", "pipeline")
    assert filed.code == 2 and "is not cut" in filed.err


def test_missing_classes_are_refused_in_python(path):
    lose(path, metadata=["1.1"])
    with pytest.raises(InputError, match="class of entry 1"):
        capture_file(path)


def test_a_hybrid_is_no_other_model(tmp_path, cachegen):
    """Its states cannot be given back, which is another matter."""
    model = make_model(tmp_path / "jamba", config_of("jamba"))
    own = tmp_path / "own.safetensors"
    assert cachegen("capture", "--model", model, "-p", TEXT, "-o", own).code == 0
    done = cachegen("quality", "--prompt-cache-file", own, "--model", model, "-p", TEXT)
    assert done.code == 1 and "cannot be given to the model" in done.err
