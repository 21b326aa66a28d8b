"""A terminal that is the same everywhere, and results of tiny models."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from processes import TEXT
from tiny import LLAMA, MAMBA, SLIDING, make_model

import cachegen_cli.device  # noqa: F401  before any test imports mlx, so that OpenBLAS counts
from cachegen_cli import __main__ as entry
from cachegen_cli.parallel import threads

os.environ["HF_HUB_OFFLINE"] = "1"  # before any test imports huggingface_hub


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "CI", "CACHEGEN_MODEL", "CACHEGEN_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama", LLAMA)


@pytest.fixture(scope="session")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "sliding", SLIDING, "bfloat16")


@pytest.fixture(scope="session")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "mamba", MAMBA)


@pytest.fixture(scope="session")
def captured(llama: Path):
    from cachegen_cli import capture

    return capture(str(llama), "It was a quiet night on the river. " * 3)


@pytest.fixture(scope="session")
def result(captured):
    from cachegen_cli import analyze

    return analyze(captured, bits=4)


@pytest.fixture(scope="session")
def swept(captured):
    from cachegen_cli import sweep

    return sweep(captured, bits=(2, 8), group_sizes=(16, 32))


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def cachegen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs the command in this process."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["cachegen", *map(str, arguments)])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(threads, "_threads", set())  # what other tests have left at work
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            entry.main()
        return Outcome(int(stop.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def quick(llama: Path) -> tuple[object, ...]:
    """A tiny model and a short text."""
    return ("--model", llama, "--prompt", TEXT)
