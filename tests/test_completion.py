"""What the shell offers."""

from __future__ import annotations

import os
import subprocess
import sys

from cachegen_cli.options import completions


def test_schemes_one_or_several():
    assert completions.schemes("un") == ["uniform"]
    assert completions.schemes("group,m") == ["group,mlx"]
    assert len(completions.schemes("")) >= 6


def test_models_in_the_cache_folders_and_files(tmp_path, monkeypatch):
    hub = tmp_path / "hub"
    for name in ("models--mlx-community--Llama-4bit", "models--a--b", "datasets--c--d"):
        (hub / name).mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.gguf").touch()
    (tmp_path / "some.txt").touch()
    assert completions.models("mlx-c") == ["mlx-community/Llama-4bit"]
    assert completions.models("so") == ["some.gguf"]
    assert completions.models("h") == ["hub/"]
    assert completions.models(f"{tmp_path}/so") == [f"{tmp_path}/some.gguf"]


def test_schedules_and_plans(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").touch()
    assert completions.schedules("") == ["uniform", "depth", "plan.json"]


def test_the_command_asks_them(monkeypatch):
    asked = {"_CACHEGEN_COMPLETE": "complete_bash", "COMP_CWORD": "3"}
    for words, offered in (
        ("cachegen analyze --scheme un", "uniform"),
        ("cachegen compare --schemes mlx,c", "mlx,cachegen"),
        ("cachegen analyze --schedule de", "depth"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", "from cachegen_cli.cli import app; app(prog_name='cachegen')"],
            env=os.environ | asked | {"COMP_WORDS": words}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout.split() == [offered], done.stderr
