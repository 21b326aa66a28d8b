"""Several processes under mlx.launch, over its ring on loopback."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import LLAMA, make_model

from cachegen_cli import UsageError, analyze
from cachegen_cli.errors import InputError
from cachegen_cli.ranks import ALONE, gathered, is_first, ranks

TEXTS = [
    "It was a quiet night on the river and nobody came by.",
    "def f(x):\n    return x + 1  # and so on",
    "In the morning the ferryman found the rope cut.",
]


def launched(n: int, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess:
    launch = Path(sys.executable).parent / "mlx.launch"
    port = str(random.randint(20_000, 50_000))
    run = [launch, "-n", str(n), "--backend", "ring", "-p", port, "--",
           sys.executable, "-m", "cachegen_cli", *map(str, arguments)]  # fmt: skip
    return subprocess.run(run, capture_output=True, text=True, timeout=240, cwd=cwd)


def prompts() -> list[str]:
    return [word for text in TEXTS for word in ("-p", text)]


def plain(text: str) -> dict:
    found = json.loads(text[text.index("{") :])
    del found["timing"]
    del found["command"]  # which names the shards
    return found


def test_alone():
    assert is_first() and ranks() == ALONE and gathered("x") == ["x"]
    with pytest.raises(InputError, match="no"):
        gathered(InputError("no"))


@pytest.mark.parametrize("n", [3])
def test_texts_are_shared_out_and_the_numbers_stay(llama, cachegen, n):
    asked = ("quality", "--model", llama, *prompts(), "--bits", 3, "--json")
    assert plain(launched(n, *asked).stdout) == plain(cachegen(*asked).out)


def test_a_sweep_of_one_text(llama, cachegen):
    asked = ("sweep", "--model", llama, "-p", TEXTS[0], "--bits", "2,4", "--json")
    assert plain(launched(2, *asked).stdout) == plain(cachegen(*asked).out)


def test_a_file_is_written_once(llama, tmp_path):
    asked = ("analyze", "--model", llama, *prompts(), "-o", "r.json")
    done = launched(2, *asked, cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    assert done.stderr.count("Wrote r.json") == 1


def test_a_rank_that_fails_takes_the_run_down_with_one_error(llama):
    done = launched(2, "quality", "--model", llama, "-p", TEXTS[0], "-p", "a")
    assert done.stderr.count("error: ") == 1 and "too few for a continuation" in done.stderr
    assert not done.stdout.count("KL nats")


def test_other_commands_run_once(llama):
    done = launched(2, "verify", "--model", llama, "-p", TEXTS[0])
    assert done.stdout.count("PASS: 4 layers") == 1


def test_a_target_is_not_searched_by_several(monkeypatch, llama):
    from cachegen_cli import analysis
    from cachegen_cli.ranks import Ranks

    monkeypatch.setattr(analysis, "ranks", lambda: Ranks(0, 2))
    with pytest.raises(UsageError, match="one process alone"):
        analyze(str(llama), TEXTS, scheme="uniform:bits=3")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A model that mlx-lm can cut into stages."""
    folder = tmp_path_factory.mktemp("qwen") / "m"
    return make_model(folder, LLAMA | {"model_type": "qwen2", "num_hidden_layers": 5})


@pytest.mark.parametrize("scheme", ["cachegen", "uniform:error=0.05"])
def test_a_pipeline_gives_the_same_numbers(qwen, cachegen, scheme):
    asked = ("quality", "--model", qwen, *prompts()[:4], "--json", "--scheme", scheme)
    whole, parts = (
        plain(cachegen(*asked).out),
        plain(launched(2, *asked, "--shard", "pipeline").stdout),
    )
    assert {layer["kv_bits"] for layer in parts["layers"]} == {""}
    for layer in (*whole["layers"], *parts["layers"]):
        del layer["kv_bits"]
    assert parts == whole


def test_tensor_parallel_heads_add_up(llama, cachegen):
    asked = ("analyze", "--model", llama, "-p", TEXTS[0] * 2, "--bits", 4, "--json")
    whole, parts = (
        plain(cachegen(*asked).out),
        plain(launched(2, *asked, "--shard", "tensor").stdout),
    )
    assert parts["model"] == whole["model"] and parts["prompt"] == whole["prompt"]
    for one, other in zip(parts["layers"], whole["layers"], strict=True):
        for name in ("keys", "values"):
            a, b = one[name], other[name]
            for figure in ("elements", "raw_bytes", "fixed_bytes", "parameter_bytes", "bits"):
                assert a[figure] == b[figure]
            assert a["entropy_bytes"] == pytest.approx(b["entropy_bytes"], rel=1e-3, abs=2)
            assert a["header_bytes"] == 2 * b["header_bytes"]  # streams of both ranks
    assert parts["totals"]["container_bytes"] is None


def test_models_that_cannot_be_cut_say_so(llama, mamba):
    done = launched(2, "analyze", "--model", llama, "-p", "abc", "--shard", "pipeline")
    assert done.stderr.count("error: ") == 1 and "does not support pipelining" in done.stderr
    done = launched(2, "analyze", "--model", mamba, "-p", "abc", "--shard", "tensor")
    assert done.stderr.count("error: ") == 1 and "does not support tensor" in done.stderr


def test_heads_that_do_not_divide_say_so(llama):
    done = launched(3, "analyze", "--model", llama, "-p", "abc", "--shard", "tensor")
    assert done.stderr.count("error: ") == 1
    assert "the KV heads of" in done.stderr and "over 3 processes" in done.stderr


def test_a_wrong_command_line_is_said_once(llama):
    done = launched(2, "analyze", "--model", llama, "-p", "abc", "--bits", 99)
    assert done.stderr.count("'--bits'") == 1


def test_a_rank_that_dies_alone_ends_the_run(llama, tmp_path):
    """Rank 1 fails while rank 0 waits for it."""
    script = tmp_path / "s.py"
    script.write_text(
        "import os, sys\n"
        "from cachegen_cli import analysis, errors\n"
        "if os.environ['MLX_RANK'] == '1':\n"
        "    def fail(*a, **k):\n        raise errors.ModelError('rank 1 has no memory')\n"
        "    analysis.measure_texts = fail\n"
        f"sys.argv = ['cachegen', 'analyze', '--model', {str(llama)!r}, '-p', 'abcdef', "
        "'--shard', 'tensor']\n"
        "from cachegen_cli.__main__ import main\nmain()"
    )
    launch = Path(sys.executable).parent / "mlx.launch"
    run = [launch, "-n", "2", "--backend", "ring", "-p", "21973", "--", sys.executable, script]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.stderr.count("error: rank 1 has no memory") == 1
