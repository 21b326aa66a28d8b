"""Write what the documentation shows of the program, or check that it is still so.

    python tools/docs.py            runs every example, writes outputs and docs/reference.md
    python tools/docs.py --check    says what differs and exits with 1; files stay as they are
    ... PAGE [PAGE ...]             these pages alone

In a block of ```console, a line that starts with "$ " is run by bash, and what follows is its
output. The blocks of a page share a folder, in which `sample_prompts/` lies. What is measured
may differ a little between machines, and the check lets it; counts may not.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = "docs/reference.md"
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"(?<=```console\n)(.*?)(?=^```$)", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
_COUNT = re.compile(r"(?<![\d.,])\d{1,5}(?![\d.,e]*\d)(?! ?(?:[kMGT]?B|%|\w+\.cgkv)\b)")
_RELATIVE = 0.06  # by which a number may differ


def regenerated(page: str) -> str:
    """The page with every example run again."""
    if page == REFERENCE:
        return reference()
    text = (ROOT / page).read_text()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "sample_prompts", Path(folder) / "sample_prompts")
        return _BLOCK.sub(lambda block: _run_block(block[1], folder), text)


def _run_block(block: str, folder: str) -> str:
    """The block's commands, each with its output."""
    lines = []
    for line in block.splitlines():
        if line.startswith("$ "):
            lines += [line, *_output(line[2:], folder).splitlines()]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _output(command: str, folder: str) -> str:
    own = command.replace("uv run cachegen", "cachegen")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "COLUMNS": "80", "HF_HUB_OFFLINE": "1"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CACHEGEN_", "FORCE_"))}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", own],
        cwd=folder, env=kept | environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    if done.returncode not in (0, 3, 141):  # 141: the reader of a pipe had enough
        raise SystemExit(f"'{command}' failed: {done.stderr}")
    return done.stdout


def reference() -> str:
    """Every command's help."""
    from cachegen_cli.cli import COMMANDS

    parts = [_REFERENCE]
    for command in ("", *COMMANDS):
        name = f"cachegen {command}".strip()
        help_text = _output(f"{name} --help", ".")
        parts.append(f"## {name}\n\n```text\n{help_text.strip()}\n```\n")
    return "\n".join(parts)


_REFERENCE = """# Command reference

What each command is for and how its figures are meant: [commands.md](commands.md).
This page is what `--help` prints.
"""


def different(old: str, new: str) -> list[str]:
    """Lines that say something else; numbers are let off where they are nearly the same."""
    before, after = old.splitlines(), new.splitlines()
    if len(before) != len(after):
        return [f"{len(before)} lines are {len(after)} now"]
    return [f"- {a}\n+ {b}" for a, b in zip(before, after, strict=True) if not _alike(a, b)]


def _alike(one: str, other: str) -> bool:
    if _NUMBER.sub("#", "".join(one.split())) != _NUMBER.sub("#", "".join(other.split())):
        return False
    if _COUNT.findall(one) != _COUNT.findall(other):  # tokens, layers, rows
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(_near(a.replace(",", ""), b.replace(",", "")) for a, b in pairs)


def _near(one: str, other: str) -> bool:
    decimals = min(len(text.partition(".")[2]) for text in (one, other))
    a, b = float(one), float(other)
    return abs(a - b) <= max(1.5 * 10.0**-decimals, _RELATIVE * max(abs(a), abs(b)))


def main() -> int:
    """Regenerate or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("pages", nargs="*", default=[REFERENCE, *PAGES])
    asked = parser.parse_args()
    failed = 0
    for page in dict.fromkeys(asked.pages):
        path = ROOT / page
        old = path.read_text() if path.exists() else ""
        new = regenerated(page)
        if not asked.check:
            path.write_text(new)
        elif lines := different(old, new):
            failed += 1
            print(f"{page} is out of date; 'make docs' writes it again:", *lines[:20], sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
