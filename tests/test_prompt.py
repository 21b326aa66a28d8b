from __future__ import annotations

import io
import json

import pytest

from cachegen_cli import (
    InputError,
    capture,
    capture_file,
    capture_texts,
    load_model,
    read_prompt,
    read_prompts,
    write_capture,
)
from cachegen_cli.prompt import DEFAULT_SAMPLE, LONG_SAMPLE, Prompt


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder" / "below").mkdir(parents=True)
    (tmp_path / "folder" / "b.txt").write_text("bee")
    (tmp_path / "folder" / "a.md").write_text("ay")
    (tmp_path / "folder" / ".hidden").write_text("no")
    lines = [{"text": "one"}, {"text": "two\nlines", "body": "2"}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return tmp_path


def test_every_kind_in_order(texts):
    found = read_prompts(["literal", "@folder", "@t.jsonl", "@folder/b.txt"])
    assert [(p.source, p.text) for p in found] == [
        ("text", "literal"), ("folder/a.md", "ay"), ("folder/b.txt", "bee"),
        ("t.jsonl:1", "one"), ("t.jsonl:2", "two\nlines"), ("folder/b.txt", "bee"),
    ]  # fmt: skip


def test_jsonl_in_a_folder_and_another_key(texts):
    (texts / "t.jsonl").write_text('{"content": "x"}\r\n{"content": "y\u2028z"}')
    (texts / "t.jsonl").rename(texts / "folder" / "c.jsonl")
    assert [p.text for p in read_prompts(["@folder"], "content")] == ["ay", "bee", "x", "y\u2028z"]


@pytest.mark.parametrize(
    ("line", "key"),
    [("[1]", "text"), ("{", "text"), ('{"text": 3}', "text"), ('{"text": null}', "text"),
     ('{"text": "a"}', "body"), ("3", "text"), ("[" * 100_000, "text"), ('"text"', "text")],
)  # fmt: skip
def test_a_line_without_its_text_is_named(texts, line, key):
    (texts / "t.jsonl").write_text(json.dumps({key: "fine"}) + "\n" + line)
    with pytest.raises(InputError, match=f"line 2 of 't.jsonl' has no text under '{key}'"):
        read_prompts(["@t.jsonl"], key)


def test_nothing_to_read(texts):
    (texts / "empty").mkdir()
    with pytest.raises(InputError, match="holds no files"):
        read_prompts(["@empty"])
    (texts / "t.jsonl").write_text("\n \n")
    with pytest.raises(InputError, match="holds no lines"):
        read_prompts(["@t.jsonl"])
    (texts / "folder" / "z.bin").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"folder/z\.bin is not UTF-8"):
        read_prompts(["@folder"])


def test_samples():
    assert read_prompt(None).source == f"sample {DEFAULT_SAMPLE}"
    assert read_prompt(None, LONG_SAMPLE).source == f"sample {LONG_SAMPLE}"


def test_a_pattern_names_files(tmp_path):
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(name)
    found = read_prompts([f"@{tmp_path}/*.txt"])
    assert [prompt.text for prompt in found] == ["a.txt", "b.txt"]
    (tmp_path / "[x].txt").write_text("odd")
    assert [p.text for p in read_prompts([f"@{tmp_path}/[x].txt"])] == ["odd"]
    with pytest.raises(InputError, match="no file is named like"):
        read_prompts([f"@{tmp_path}/*.rst"])


BLANKS = ("", "   ", "\n\t \r\n", "\u3000\u00a0")


@pytest.mark.parametrize("text", BLANKS)
def test_blank_texts_are_refused_wherever_they_come_from(tmp_path, monkeypatch, text, llama):
    word = "blank" if text else "empty"
    (tmp_path / "t.txt").write_text(text)
    (tmp_path / "t.jsonl").write_text(
        json.dumps({"text": "fine"}) + "\n" + json.dumps({"text": text})
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    for argument, name in (
        (text, "the prompt"), ("-", "the prompt from stdin"),
        (f"@{tmp_path}/t.txt", f"the prompt from {tmp_path}/t.txt"),
        (f"@{tmp_path}/t.jsonl", f"the prompt from {tmp_path}/t.jsonl:2"),
    ):  # fmt: skip
        with pytest.raises(InputError) as wrong:
            read_prompts([argument])
        assert wrong.value.message == f"{name} is {word}"
    model = load_model(str(llama))
    for work in (
        lambda: capture(model, text), lambda: capture(model, text, chat=True),
        lambda: list(capture_texts(model, ["fine", text])),
        lambda: Prompt(text),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"the prompt is {word}"):
            work()


def test_a_nul_byte_is_named_and_iconv_does_not_help(tmp_path, monkeypatch, llama):
    data = "é\0\0rest".encode()
    (tmp_path / "t.txt").write_bytes(data)
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf" + data)
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": "é\0\0rest"}))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    for work in (
        *(
            lambda a=a: read_prompts([a])
            for a in ("-", f"@{tmp_path}/*.txt", f"@{tmp_path}/t.jsonl")
        ),
        lambda: capture(str(llama), "é\0\0rest"),
    ):
        with pytest.raises(InputError, match="holds a NUL byte at offset 2 of its text") as wrong:
            work()
        assert "iconv" not in wrong.value.hint


def test_what_is_not_utf_8_is_for_iconv(tmp_path):
    for data, byte, offset in (
        ("text".encode("utf-16"), "0xff", 0), (b"ab\xe4c", "0xe4", 2),
        (b"\xef\xbb\xbfab\xe4c", "0xe4", 5), ("text".encode("utf-16-be"), None, 0),
        (b"\xfe\xff" + "text".encode("utf-16-be"), "0xfe", 0),
    ):  # fmt: skip
        (tmp_path / "t").write_bytes(data)
        with pytest.raises(InputError) as wrong:
            read_prompt(f"@{tmp_path}/t")
        if byte is None:  # without its mark it is UTF-8 with zeros between
            assert "holds a NUL byte at offset 0" in wrong.value.message
        else:
            assert f"is not UTF-8 text: byte {byte} at offset {offset}" in wrong.value.message
            assert "iconv" in wrong.value.hint


def test_the_text_after_a_file_is_no_blank(llama, tmp_path):
    model, path = load_model(str(llama)), tmp_path / "c.safetensors"
    write_capture(capture(model, "abc", keep_cache=True), path, "C")
    with pytest.raises(InputError, match="the prompt is blank"):
        capture_file(path, model, "  ")
