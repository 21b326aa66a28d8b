"""GGUF files as mlx-lm model folders: converted once by gguf2mlx, kept in the user's cache.

gguf2mlx writes a Qwen-style pre-tokenizer where it does not know the one that the file
names, which changes the tokens of digits, code and text that is not NFC. The right one
is put in place here where it is known; elsewhere the user is warned.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from cachegen_cli.errors import ModelError
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.results.run import Notice

_LAYOUT = 1  # raise when what is done after conversion changes
_STALE_SECONDS = 24 * 3600

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
# tokenizer.ggml.pre -> the normalizer and pre-tokenizer of tokenizer.json that it stands for
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                _BYTE_LEVEL | {"use_regex": True},
            ],
        },
    },
}
_RIGHT_IN_GGUF2MLX = {
    "gpt-2", "gpt2", "llama-bpe", "llama3", "llama-v3",
    "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2",
}  # fmt: skip


def can_convert() -> bool:
    """Whether gguf2mlx is installed."""
    return importlib.util.find_spec("gguf2mlx") is not None


def model_folder(path: Path, progress: Progress = no_progress) -> Path:
    """The mlx-lm folder of a GGUF file, converted now if it has not been.

    Raises:
        ModelError: gguf2mlx is missing or refuses the file, or the cache cannot be written.
    """
    folder = folder_of(path)
    if folder.is_dir():
        return folder
    if not can_convert():
        raise ModelError(
            f"'{path}' is a GGUF file and gguf2mlx, which converts it, is not installed",
            "pip install gguf2mlx",
        )
    progress("convert", 0, 1)
    try:
        _convert(path, folder)
    except OSError as error:
        raise ModelError(
            f"'{path.name}' could not be converted in {folder.parent}: {error.strerror}",
            "make room there, or set CACHEGEN_CACHE to another folder",
        ) from error
    return folder


def pre_tokenizer_notice(folder: Path) -> Notice | None:
    """A warning if the folder's tokenizer may split text in another way than the model's own."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    if "ByteLevel" not in json.dumps(tokenizer.get("pre_tokenizer")):
        return None  # only byte-level BPE depends on the name
    name = config.get("gguf_tokenizer_pre") or "none"
    if name in _PRE_TOKENIZERS or name in _RIGHT_IN_GGUF2MLX:
        return None
    return Notice(
        "unknown-pre-tokenizer",
        f"the GGUF file names the pre-tokenizer '{name}', which is not known here: "
        "the prompt's tokens, and so every figure, may differ from the model's own",
    )


def cache_folder() -> Path:
    """Where converted models are kept: CACHEGEN_CACHE, else the system's cache folder."""
    if chosen := os.environ.get("CACHEGEN_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "cachegen"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cachegen"


def folder_of(path: Path) -> Path:
    """Return where a file's conversion is kept, or would be.

    The name holds a hash of its size, time and first MiB, so that another file gets another.
    """
    stat = path.stat()
    digest = hashlib.sha256(f"{_LAYOUT} {stat.st_size} {stat.st_mtime_ns} ".encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
    return cache_folder() / f"{path.stem}-{digest.hexdigest()[:12]}"


def _convert(path: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder.parent)
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=folder.parent) as work:
        output = Path(work) / "model"
        run = subprocess.run(
            [sys.executable, "-m", "gguf2mlx", "-i", path, "-o", output, "--offline"],
            capture_output=True,
            text=True,
            errors="replace",
        )
        if run.returncode or not (output / "config.json").is_file():
            reason = _reason(run.stdout + run.stderr)
            raise ModelError(
                f"'{path.name}' cannot be converted: {reason}",
                f"make room in {folder.parent}, or set CACHEGEN_CACHE to another folder"
                if "No space left" in reason
                else "check the file, or take the model from Hugging Face: --model OWNER/NAME",
            )
        _repair_tokenizer(output)
        try:
            output.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run was faster
                raise


def _remove_stale(parent: Path) -> None:
    """Remove what conversions that were killed have left."""
    for work in parent.glob(".converting-*"):
        with suppress(FileNotFoundError):  # another run may remove it at the same time
            if time.time() - work.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(work, ignore_errors=True)


def _reason(output: str) -> str:
    """The converter's own complaint: its marked line, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marked = [line.lstrip("❌ ") for line in lines if line.startswith("❌")]
    return (marked or lines or ["gguf2mlx gave no reason"])[-1]


def _repair_tokenizer(folder: Path) -> None:
    name = json.loads((folder / "tokenizer_config.json").read_text()).get("gguf_tokenizer_pre")
    if right := _PRE_TOKENIZERS.get(name):
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | right, ensure_ascii=False))
