"""The README says what the program does."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cachegen_cli import (
    analyze,
    calibrate,
    capture_texts,
    compare,
    pack,
    plan,
    sensitivity,
    to_json,
    verify,
)
from cachegen_cli.insights import insights
from cachegen_cli.prompt import samples_folder

README = (Path(__file__).parent.parent / "README.md").read_text()


def help_of(*command: str) -> str:
    run = [sys.executable, "-m", "cachegen_cli", *command, "--help"]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout


COMMANDS = [
    "analyze", "sweep", "quality", "sensitivity", "compare", "calibrate", "insights", "plan",
    "models", "verify", "capture", "convert", "pack", "unpack", "inspect",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_documented(command):
    text = help_of(command)
    assert f"cachegen {command}" in README
    assert "Examples:" in text
    for option in set(re.findall(r"--[a-z-]+", text)) - {"--help", "--output", "--quiet"}:
        assert f"`{option}" in README, option


def test_every_command_of_the_readme_parses():
    lines = re.findall(r"^(?:\$ uv run )?(cachegen .*)$", README, re.MULTILINE)
    assert len(lines) >= 12
    known = {name: help_of(name) for name in COMMANDS}
    for line in lines:
        words = shlex.split(line, comments=True)
        for option in (w for w in words[2:] if w.startswith("-")):
            assert option in known[words[1]], line


def test_every_json_key_is_documented(result, swept, captured, llama, tmp_path):
    def keys(value):
        if isinstance(value, dict):
            yield from value
        for inner in value.values() if isinstance(value, dict) else value:
            if isinstance(inner, dict | list):
                yield from keys(inner)

    section = README[README.index("## JSON") : README.index("## As a library")]
    texts = list(capture_texts(str(llama), ["one text " * 9, "another " * 9], continuation=None))
    results = (
        result, swept, verify(captured), pack(captured, tmp_path / "c.cgkv"), sensitivity(texts),
        plan(texts, target_bits=5.2, choices=(2, 4)), analyze(texts, quality=True),
        insights(texts), compare(texts, schemes=("group", "uniform")),
        calibrate(str(llama), "a text " * 9, tmp_path / "p.safetensors"),
    )  # fmt: skip
    for one in results:
        for key in set(keys(json.loads(to_json(one)))):
            assert f"`{key}`" in section or f"`{key}[]`" in section, key


def test_every_sample_is_described():
    names = {path.name for path in samples_folder().glob("*.txt")}
    assert len(names) >= 4
    for name in names:
        assert f"`sample_prompts/{name}`" in README


def test_every_environment_variable_is_documented():
    package = Path(__file__).parent.parent / "cachegen_cli"
    source = "".join(path.read_text() for path in package.rglob("*.py"))
    for name in set(re.findall(r"CACHEGEN_[A-Z]+", source)):
        assert f"`{name}" in README
