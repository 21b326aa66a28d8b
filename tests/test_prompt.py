from __future__ import annotations

import json

import pytest

from cachegen_cli import InputError, read_prompt, read_prompts
from cachegen_cli.prompt import DEFAULT_SAMPLE, LONG_SAMPLE


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
    [("[1]", "text"), ("{", "text"), ('{"text": 3}', "text"), ('{"text": ""}', "text"),
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
