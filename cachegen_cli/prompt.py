"""Where a prompt's text comes from: an argument, a file, stdin or the bundled sample."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from cachegen_cli.errors import InputError

DEFAULT_SAMPLE = "prose.txt"


@dataclass(frozen=True)
class Prompt:
    """A text and where it came from ("text", "stdin", "sample" or the file's name)."""

    text: str
    source: str = "text"

    @property
    def sha256(self) -> str:
        """Hash of the text's UTF-8 bytes."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_prompt(argument: str | None) -> Prompt:
    """The prompt that ``--prompt`` names: TEXT, ``@FILE``, ``-`` for stdin, None for the sample.

    Raises:
        InputError: the text is empty, not UTF-8, or the file cannot be read.
    """
    if argument is None:
        path = samples_folder() / DEFAULT_SAMPLE
        return Prompt(_decode(path.read_bytes(), path.name), f"sample {path.name}")
    if argument == "-":
        return Prompt(_decode(sys.stdin.buffer.read(), "stdin"), "stdin")
    if argument.startswith("@"):
        return Prompt(_decode(_read_file(argument[1:]), argument[1:]), argument[1:])
    return Prompt(_decode(argument.encode(errors="surrogateescape"), "--prompt"))


def samples_folder() -> Path:
    """The folder of the bundled sample prompts, installed or in a checkout."""
    package = Path(__file__).parent
    installed = package / "sample_prompts"
    return installed if installed.is_dir() else package.parent / "sample_prompts"


def _read_file(name: str) -> bytes:
    try:
        return Path(name).expanduser().read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"prompt file '{name}' does not exist",
            "@ reads a file; leave it out for a literal text",
        ) from None
    except OSError as error:
        raise InputError(
            f"prompt file '{name}' cannot be read: {error.strerror}", "name a readable text file"
        ) from None


def _decode(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InputError(f"the prompt from {name} is not UTF-8 text", "convert it with iconv first")
    if not text:
        raise InputError(f"the prompt from {name} is empty", "give --prompt TEXT or --prompt @FILE")
    return text
