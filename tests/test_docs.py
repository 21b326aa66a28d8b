"""The README says what the program does."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import LLAMA, make_model

from cachegen_cli import (
    analyze,
    calibrate,
    capture,
    capture_texts,
    compare,
    pack,
    plan,
    sensitivity,
    to_json,
    verify,
    write_capture,
)
from cachegen_cli.cli import COMMANDS
from cachegen_cli.insights import insights
from cachegen_cli.prompt import samples_folder
from cachegen_cli.report.differences import differences

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text()
TEXT = "\n".join(page.read_text() for page in PAGES)
sys.path.insert(0, str(ROOT / "tools"))


def help_of(*command: str) -> str:
    run = [sys.executable, "-m", "cachegen_cli", *command, "--help"]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme_and_has_examples(command):
    assert f"`cachegen {command}`" in README and "Examples:" in help_of(command)


def test_the_command_reference_is_what_help_prints():
    import docs

    assert (ROOT / docs.REFERENCE).read_text() == docs.reference(), "run 'make docs'"


@pytest.mark.parametrize("page", [page for page in PAGES if "```console" in page.read_text()])
def test_every_example_prints_what_is_shown(page, monkeypatch):
    """With the bundled model; numbers may differ a little between machines."""
    import docs

    if "$ jq" in page.read_text() and not shutil.which("jq"):
        pytest.skip("jq is not here")
    monkeypatch.delenv("COLUMNS")
    differing = docs.different(page.read_text(), docs.regenerated(str(page.relative_to(ROOT))))
    assert not differing, f"run 'make docs': {differing}"


# cannot run here: other machines, other programs, what changes this machine
ELSEWHERE = ("--hosts", "mlx_lm.", "pip install", "pipx", "brew", "python3 -m venv", "uv tool",
             "uv run pytest", "git ", "apt-get", "make ", "uv run pre-commit")  # fmt: skip


def commands_of(page: Path) -> list[str]:
    """Lines of blocks of sh, without comments."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)])
def test_every_command_of_the_docs_runs(page, workplace, cachegen, monkeypatch):
    """As it stands there, with a tiny model in the place of real ones."""
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("CACHEGEN_MODEL", "model")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for line in commands_of(page):
        if any(word in line for word in ELSEWHERE) or ("| jq" in line and not shutil.which("jq")):
            continue
        line = re.sub(r"mlx-community/\S+|OWNER/NAME|LARGE", "model", line.split("&&")[-1].strip())
        line = line.replace("uv run cachegen", "cachegen")
        line = line.replace("-n 2 --backend ring", f"-n 2 --backend ring -p {PORT}")
        for target in re.findall(r" -o (\S+)", line):  # of an example before
            Path(target).unlink(missing_ok=True)
        if line.startswith("cachegen ") and "|" not in line and "<" not in line:
            done = cachegen(*shlex.split(line)[1:])
            code, said = done.code, done.err
        else:
            assert "cachegen" in line, f"nobody has said how to test: {line}"
            shell = ["bash", "-o", "pipefail", "-c", line]
            ran = subprocess.run(shell, capture_output=True, text=True, timeout=300)
            code, said = ran.returncode, ran.stderr
        assert code in (0, 3), (line, said)


PORT = 20_000 + os.getpid() % 20_000


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the files that the examples name, and a tiny model."""
    folder = tmp_path_factory.mktemp("docs")
    kind = {"model_type": "qwen2", "hidden_size": 256, "max_position_embeddings": 8192}
    model = make_model(
        folder / "model", LLAMA | kind | {"num_hidden_layers": 2}
    )  # to be cut in two
    shutil.copytree(ROOT / "sample_prompts", folder / "sample_prompts")
    words = "It was a quiet night on the river. "
    texts = {"notes": words * 8, "more": "And then it rained. " * 8, "other": "Another text. " * 12}
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    for name in ("texts", "corpus", "code", "notes"):
        (folder / name).mkdir()
        for part in range(4):
            (folder / name / f"{part}.txt").write_text(f"Text {part}: {words * 8}")
    lines = [json.dumps({"text": words * 6, "content": words * 7}) for _ in range(3)]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    captured = capture(str(model), texts["notes"], keep_cache=True)
    (folder / "caches").mkdir()
    for name in ("old.safetensors", "caches/one.safetensors"):
        write_capture(captured, folder / name, "B")
    for name, bits in (("before", 4), ("after", 3), ("a", 2), ("b", 3), ("c", 5)):
        (folder / f"{name}.json").write_text(to_json(analyze(captured, bits=bits)))
    return folder


def test_every_json_key_is_documented(result, swept, captured, llama, tmp_path):
    def keys(value):
        if isinstance(value, dict):
            yield from value
        for inner in value.values() if isinstance(value, dict) else value:
            if isinstance(inner, dict | list):
                yield from keys(inner)

    section = (ROOT / "docs" / "json.md").read_text()
    texts = list(capture_texts(str(llama), ["one text " * 9, "another " * 9], continuation=None))
    results = (
        result, swept, verify(captured), pack(captured, tmp_path / "c.cgkv"), sensitivity(texts),
        plan(texts, target_bits=5.2, choices=(2, 4)), analyze(texts, quality=True),
        insights(texts), compare(texts, schemes=("group", "uniform")),
        calibrate(str(llama), "a text " * 9, tmp_path / "p.safetensors"),
        analyze(captured, detail=True), differences([result, result], ["a", "b"], 0),
    )  # fmt: skip
    for one in results:
        for key in set(keys(json.loads(to_json(one)))):
            assert f"`{key}`" in section or f"`{key}[]`" in section, key


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"])
def test_links_between_pages_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        heads = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if anchor else []
        known = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
        assert not anchor or anchor in known, link


def test_every_sample_is_described():
    names = {path.name for path in samples_folder().glob("*.txt")}
    assert len(names) >= 4
    for name in names:
        assert f"`sample_prompts/{name}`" in README


def test_every_environment_variable_is_documented():
    package = Path(__file__).parent.parent / "cachegen_cli"
    source = "".join(path.read_text() for path in package.rglob("*.py"))
    for name in set(re.findall(r"CACHEGEN_[A-Z]+", source)):
        assert f"`{name}" in TEXT
