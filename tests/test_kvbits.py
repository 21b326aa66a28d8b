"""What mlx-lm's own quantization would do to each entry."""

from __future__ import annotations

import json

import mlx.core as mx
from tiny import LLAMA, SLIDING, make_model

from cachegen_cli import analyze, capture, capture_file, render, write_capture
from cachegen_cli.kvbits import by_entry

TEXT = "It was a quiet night on the river. "
WIDE = LLAMA | {"head_dim": 64}


def test_plain_models_work(tmp_path):
    found = capture(str(make_model(tmp_path / "m", WIDE)), TEXT)
    assert set(found.kv_bits.values()) == {"works"}
    result = analyze(found)
    assert {layer.kv_bits for layer in result.measurement.layers} == {"works"}
    assert "works" in render(result, "table", wide=True)


def test_head_sizes_that_do_not_divide_crash(captured):
    assert set(captured.kv_bits) == {0, 1, 2, 3}
    assert all(text.startswith("crashes: ") and "64" in text for text in captured.kv_bits.values())
    table = " ".join(render(analyze(captured), "table", wide=True).split())
    assert "Entries 0-3: mlx_lm --kv-bits crashes (" in table


def test_windows_crash_and_states_stay(tmp_path):
    found = capture(str(make_model(tmp_path / "s", SLIDING | {"head_dim": 64})), TEXT * 2)
    texts = [found.kv_bits[i] for i in range(4)]
    assert texts[0] == texts[2] == "crashes: RotatingKVCache Quantization NYI"
    assert texts[1] == texts[3] == "works"
    file = tmp_path / "s.safetensors"
    write_capture(capture(found.loaded, TEXT * 2, keep_cache=True), file)
    assert capture_file(file).kv_bits == {0: texts[0], 2: texts[0]}
    data = json.loads(render(analyze(capture_file(file)), "json"))
    assert [layer["kv_bits"] for layer in data["layers"]] == [texts[0], "", texts[0], ""]


def test_a_model_that_cannot_be_tried_tells_nothing():
    def network(ids, cache=None):
        raise ValueError("no")

    assert by_entry(network, 3) == ["", "", ""]


def test_an_entry_that_is_left_alone_says_so():
    from mlx_lm.models.cache import ChunkedKVCache

    class Network:
        def make_cache(self):
            return [ChunkedKVCache(8)]

        def __call__(self, ids, cache):
            x = mx.zeros((1, 1, ids.shape[1], 64))
            return cache[0].update_and_fetch(x, x)[0]

    assert by_entry(Network(), 1) == ["nothing: mlx-lm leaves a ChunkedKVCache as it is"]


def test_max_kv_size(llama, cachegen, tmp_path):
    ignored = cachegen("analyze", "--model", llama, "-p", TEXT, "--max-kv-size", 8, "--json")
    assert ignored.code == 0 and "max-kv-size-ignored" in ignored.out
    phi = LLAMA | {"model_type": "qwen2", "num_key_value_heads": 2}
    model = make_model(tmp_path / "qwen", phi)
    kept = cachegen("analyze", "--model", model, "-p", TEXT, "--max-kv-size", 8, "--json")
    found = json.loads(kept.out)
    assert "max-kv-size-ignored" not in kept.out
    assert {(x["tokens"], x["cache"]) for x in found["layers"]} == {(8, "RotatingKVCache")}
    table = cachegen("analyze", "--model", model, "-p", TEXT, "--max-kv-size", 8)
    assert "8 of 35 tokens seen" in " ".join(table.out.split())
