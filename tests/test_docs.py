"""The README says what the program does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import LLAMA, make_model

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
def test_every_command_of_the_docs_runs(page, workplace):
    """As it stands there, with a tiny model in the place of real ones."""
    folder, environment = workplace
    for line in commands_of(page):
        if any(word in line for word in ELSEWHERE):
            continue
        if "| jq" in line and not shutil.which("jq"):
            continue
        assert "cachegen" in line, f"nobody has said how to test: {line}"
        line = re.sub(r"mlx-community/\S+|OWNER/NAME|LARGE", str(folder / "model"), line)
        line = line.replace("uv run cachegen", "cachegen").split("&&", 1)[-1]
        line = re.sub(r" -n 2 --backend ring", f" -n 2 --backend ring -p {PORT}", line)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], cwd=folder, env=environment,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode in (0, 3), (line, done.stderr)


PORT = 20_000 + os.getpid() % 20_000


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the files that the examples name, and an environment with a tiny model."""
    folder = tmp_path_factory.mktemp("docs")
    # of a kind that can be cut into stages
    make_model(folder / "model", LLAMA | {"model_type": "qwen2", "max_position_embeddings": 8192})
    shutil.copytree(ROOT / "sample_prompts", folder / "sample_prompts")
    words = "It was a quiet night on the river. "
    (folder / "notes.txt").write_text(words * 8)
    (folder / "more.txt").write_text("And then it rained. " * 8)
    (folder / "other.txt").write_text("Another text altogether. " * 8)
    for name in ("texts", "corpus", "code", "notes", "caches"):
        (folder / name).mkdir()
        if name != "caches":
            for part in range(4):
                (folder / name / f"{part}.txt").write_text(f"Text {part}: {words * 8}")
    lines = [json.dumps({"text": words * 6, "content": words * 7}) for _ in range(3)]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    run = [sys.executable, "-m", "cachegen_cli"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "CACHEGEN_MODEL": str(folder / "model")}

    def made(*arguments: str) -> None:
        subprocess.run([*run, *arguments], cwd=folder, env=environment, check=True,
                       capture_output=True)  # fmt: skip

    made("capture", "--prompt", "@notes.txt", "-o", "old.safetensors", "--layout", "B")
    shutil.copy(folder / "old.safetensors", folder / "caches" / "one.safetensors")
    for name, bits in (("before", "4"), ("after", "3"), ("a", "2"), ("b", "3"), ("c", "5")):
        made("analyze", "-p", words * 8, "--bits", bits, "-o", f"{name}.json")
    return folder, environment


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
