"""Prompt caches that other versions of mlx-lm wrote themselves, and read back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from processes import TEXT

from cachegen_cli import capture, capture_file, convert
from cachegen_cli.kvcache import CacheFile

PADS, CUTS, FIRST_OF_B, LAST_WITH_STEPS, LAST_OF_B = (
    "0.18.1",
    "0.19.0",
    "0.19.1",
    "0.28.0",
    "0.31.3",
)
ELSEWHERE = Path(__file__).with_name("elsewhere.py")


def beside(version: str, *arguments: object) -> None:
    """Run Python with that version of mlx-lm, in an environment of its own.

    Skips where the version cannot be installed.
    """
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv, which installs other versions of mlx-lm, is not here")
    backend = "mlx[cpu]" if sys.platform == "linux" else "mlx"
    needs = [f"mlx-lm=={version}", backend]
    needs += {PADS: ["transformers<4.46", "huggingface_hub<0.25"], CUTS: ["transformers<5"],
              FIRST_OF_B: ["transformers<5"]}.get(version, [])  # fmt: skip
    command = [uv, "run", "--quiet", "--no-project", "--isolated", "--python", sys.executable]
    command += [part for need in needs for part in ("--with", need)] + ["python"]
    there = subprocess.run([*command, "-c", "import mlx_lm"], capture_output=True, timeout=300)
    if there.returncode:
        pytest.skip(f"mlx-lm {version} cannot be installed: {there.stderr.decode()[-200:]}")
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def chatty(llama, tmp_path_factory):
    """The tiny llama with a chat template, which versions before 0.20 ask for."""
    folder = tmp_path_factory.mktemp("chatty") / "llama"
    shutil.copytree(llama, folder)
    config = folder / "tokenizer_config.json"
    template = "{% for m in messages %}{{ m.content }}{% endfor %} ."
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
    return folder


@pytest.mark.parametrize(
    ("version", "option", "layout"),
    [
        (PADS, "--kv-cache-file", "A"),
        (CUTS, "--kv-cache-file", "A"),
        (FIRST_OF_B, "--prompt-cache-file", "B"),
        (LAST_OF_B, "--prompt-cache-file", "B"),
    ],
)
def test_files_of_their_cache_prompt(version, option, layout, chatty, tmp_path):
    file = tmp_path / "other.safetensors"
    asked = ("--model", chatty, "--prompt", TEXT, option, file)
    beside(version, "-m", "mlx_lm.cache_prompt", *asked)
    assert CacheFile.open(file).layout == layout
    found = capture_file(file)
    assert (version == PADS) == ("rows-by-trailing-zeros" in {n.code for n in found.notices})
    # the version may have put the prompt into the template, whose end it cuts off
    mine = capture(str(chatty), TEXT)
    assert len(found.layers) == len(mine.layers)
    for theirs, ours in zip(found.layers, mine.layers, strict=True):
        assert theirs.cache == ours.cache == "KVCache"
        for one, other in ((theirs.keys, ours.keys), (theirs.values, ours.values)):
            assert one.dtype == other.dtype and one.shape == other.shape
            assert mx.allclose(one, other, rtol=1e-2, atol=1e-2).item()


def retained(name: str, stream: mx.array) -> mx.array:
    """What a class of `elsewhere` holds of a stream at its end."""
    if name == "RotatingKVCache":  # sinks and a window
        return mx.concatenate([stream[:, :4], stream[:, -12:]], axis=1)
    return stream[:, 3:] if name == "BatchKVCache" else stream  # less its padding


@pytest.mark.parametrize("version", [LAST_WITH_STEPS, LAST_OF_B])
def test_their_classes_and_the_way_back(version, tmp_path):
    files = [tmp_path / name for name in ("b.safetensors", "c.safetensors", "again.safetensors")]
    fed = tmp_path / "fed.safetensors"
    beside(version, ELSEWHERE, "write", files[0], fed)
    streams = mx.load(str(fed))
    found = capture_file(files[0])
    if version == LAST_OF_B:
        assert [str(kv.layer) for kv in found.layers] == ["0", "1", "2", "3", "4", "5/0", "5/1"]
    else:  # parts of lists have no names there
        assert [str(kv.layer) for kv in found.layers] == ["0", "1", "2", "3", "4"]
        assert [s.entry for s in found.skipped] == [5]
        assert "did not save what its parts are" in found.skipped[0].reason
    for number, kv in enumerate(found.layers):
        for part, got in enumerate((kv.keys, kv.values)):
            wanted = retained(kv.cache, streams[str(2 * number + part)][0])
            close = 0.05 if kv.cache == "QuantizedKVCache" else 0
            assert mx.allclose(got, wanted, rtol=0, atol=close).item(), kv.cache
    if version == LAST_OF_B:
        convert(files[0], files[1], "C")
        convert(files[1], files[2], "B")
        beside(version, ELSEWHERE, "compare", files[0], files[2])


@pytest.mark.parametrize(("window", "known"), [(None, True), (300, True), (16, False)])
def test_windows_of_layout_a(window, known, chatty, tmp_path):
    file = tmp_path / "other.safetensors"
    asked = ["--model", chatty, "--prompt", TEXT, "--kv-cache-file", file, "--ignore-chat-template"]
    asked += ["--max-kv-size", window] if window else []
    beside(PADS, "-m", "mlx_lm.cache_prompt", *asked)
    found, mine = capture_file(file), capture(str(chatty), TEXT)
    codes = {notice.code for notice in found.notices}
    assert known != ("position-not-known" in codes)
    tokens = len(mine.tokens)
    for theirs, ours in zip(found.layers, mine.layers, strict=True):
        kept = (
            ours.keys if known else mx.concatenate([ours.keys[:, :4], ours.keys[:, -12:]], axis=1)
        )
        assert mx.allclose(theirs.keys, kept, rtol=1e-2, atol=1e-2).item()
        assert theirs.tokens_seen == (tokens if known else 16)
        assert theirs.cache == ("RotatingKVCache" if window else "KVCache")


def test_chunks_that_lost_tokens(tmp_path):
    files = [tmp_path / name for name in ("b.safetensors", "fed.safetensors", "c.safetensors")]
    beside(LAST_OF_B, ELSEWHERE, "chunk", *files[:2])
    stream = mx.load(str(files[1]))["0"][0]
    convert(files[0], files[2])
    for file in (files[0], files[2]):
        chunk, whole = capture_file(file).layers
        assert (chunk.tokens_seen, chunk.window, whole.tokens_seen) == (201, 128, 201)
        assert mx.array_equal(chunk.keys, stream[:, 128:])
        assert mx.array_equal(chunk.values, stream[:, 128:] + 1)
