"""One architecture for each pattern of caches that mlx-lm's models have; the rest are listed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import architectures
import pytest

# architecture -> what its cache has to give, as in docs/coverage.md
STATE = "ArraysCache (not: it holds a recurrent state of fixed size)"
ZEROS = "KVCache (not: the values of an index of sparse attention are all zero)"
PATTERNS = {
    "llama": "4 KVCache",
    "qwen2": "4 KVCache",
    "gemma2": "4 KVCache",
    "mixtral": "4 KVCache",
    "openelm": "4 KVCache",
    "nemotron-nas": "3 KVCache",
    "gemma3_text": "2 RotatingKVCache, 2 KVCache",
    "gemma3n": "1 RotatingKVCache, 1 KVCache",
    "gemma4_text": "1 RotatingKVCache, 1 KVCache",
    "gpt_oss": "2 RotatingKVCache, 2 KVCache",
    "exaone4": "2 RotatingKVCache, 2 KVCache",
    "mimo_v2_flash": "2 RotatingKVCache, 2 KVCache",
    "iquestloopcoder": "4 KVCache, 4 RotatingKVCache",
    "llama4": "3 ChunkedKVCache, 1 KVCache",
    "qwen3_next": f"2 KVCache, 2 {STATE}",
    "jamba": f"2 KVCache, 2 {STATE}",
    "nemotron_h": f"1 KVCache, 2 {STATE}",
    "lfm2": f"2 KVCache, 2 {STATE}",
    "falcon_h1": f"4 KVCache, 4 {STATE}",
    "baichuan_m1": f"2 KVCache, 2 RotatingKVCache, 4 {STATE}",
    "recurrent_gemma": f"2 RotatingKVCache, 2 {STATE}",
    "kimi_linear": f"1 KVCache (latent), 3 {STATE}",
    "deepseek_v3": "4 KVCache (latent)",
    "deepseek_v2": "4 KVCache",
    "longcat_flash": "8 KVCache (latent)",
    "deepseek_v32": f"4 KVCache (latent), 4 KVCache (index), 4 {ZEROS}",
    "hunyuan": "4 KVCache",
    "mamba": f"4 {STATE}",
    "rwkv7": f"4 {STATE}",
}


@pytest.fixture(scope="module")
def found():
    run = [sys.executable, architectures.__file__, *PATTERNS]
    done = subprocess.run(run, capture_output=True, text=True, timeout=500)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(zip(PATTERNS, lines, strict=False))


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_of_caches_is_read(found, name):
    assert found[name]["detail"] == PATTERNS[name]
    assert found[name]["status"] in ("analysed", "in part", "not")


def test_the_list_has_every_architecture():
    rows = architectures.DOC.read_text(encoding="utf-8").splitlines()
    listed = {row.split("`")[1]: row for row in rows if row.startswith("| `")}
    if f"mlx-lm {version('mlx-lm')}:" in rows[2]:  # a later one may have more
        assert set(listed) == set(architectures.names())
    for name, detail in PATTERNS.items():
        assert detail in listed[name]
    assert not any("| crashed |" in row for row in rows)


def test_rotated_channels_that_every_head_repeats_are_warned_of():
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from cachegen_cli.entrynotices import repeated_notices
    from cachegen_cli.kvcache import read_cache

    for name, told in (("deepseek_v2", 1), ("minicpm3", 1), ("llama", 0)):
        network = architectures.network_of(name)
        cache = make_prompt_cache(network)
        mx.eval(network(mx.array([[1, 2, 3, 4, 5]]), cache=cache))
        layers, _ = read_cache(cache, mx.float16)
        model = type("Model", (), {"latent_ranks": (32, 8)})
        notices = repeated_notices(model, layers)
        assert [notice.code for notice in notices] == ["repeated-rope-key"] * told
        if told:  # 4 layers, 3 further heads, 5 tokens, 8 channels of 2 bytes
            assert f"{4 * 3 * 5 * 8 * 2} of the 16-bit bytes" in notices[0].message


def test_shared_and_copied_entries_are_warned_of(tmp_path):
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from cachegen_cli.entrynotices import shared_notices
    from cachegen_cli.kvcache import read_cache

    for name, code in (("gemma4_text", "shared-cache"), ("hunyuan", "copied-entries")):
        network = architectures.network_of(name)
        cache = make_prompt_cache(network)
        mx.eval(network(mx.array([[1, 2, 3, 4, 5]]), cache=cache))
        layers, _ = read_cache(cache, mx.float16)
        model = type("Model", (), {"network": network})
        assert [notice.code for notice in shared_notices(model, cache, layers)] == [code]
