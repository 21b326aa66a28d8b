"""Where a prompt's text comes from: an argument, a file, stdin or the bundled sample."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cachegen_cli.errors import InputError

DEFAULT_SAMPLE = "prose.txt"
LONG_SAMPLE = "long.txt"


@dataclass(frozen=True)
class Prompt:
    """A text and where it came from ("text", "stdin", "sample" or the file's name).

    InputError for what is no text: blanks alone, NUL bytes, lone surrogates.
    """

    text: str
    source: str = "text"

    def __post_init__(self) -> None:
        """Refuse what no model should read."""
        name = "the prompt" if self.source == "text" else f"the prompt from {self.source}"
        try:
            before = self.text.encode().partition(b"\0")[0]
        except UnicodeEncodeError:
            raise InputError(
                f"{name} holds lone surrogates, which are no text", "decode it first"
            ) from None
        if "\0" in self.text:
            raise InputError(
                f"{name} holds a NUL byte at offset {len(before)} of its text",
                "name a text file, or take it out with tr -d '\\000'",
            )
        if not self.text.strip():
            raise InputError(f"{name} is {'blank' if self.text else 'empty'}", "give a text")

    @property
    def sha256(self) -> str:
        """Hash of the text's UTF-8 bytes."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_prompt(argument: str | None, sample: str = DEFAULT_SAMPLE) -> Prompt:
    """The prompt that ``--prompt`` names: TEXT, ``@FILE``, ``-`` for stdin, None for the sample.

    Raises:
        InputError: it is no text (see `Prompt`), not UTF-8, or the file cannot be read.
    """
    if argument is None:
        path = samples_folder() / sample
        return Prompt(_decode(path.read_bytes(), path.name), f"sample {path.name}")
    if argument == "-":
        return Prompt(_decode(sys.stdin.buffer.read(), "stdin"), "stdin")
    if argument.startswith("@"):
        return Prompt(_decode(_read_file(argument[1:]), argument[1:]), argument[1:])
    return Prompt(_decode(argument.encode(errors="surrogateescape"), "--prompt"))


def read_prompts(arguments: Sequence[str], text_key: str = "text") -> list[Prompt]:
    """Every text that the arguments name, in their order.

    Args:
        arguments: each as in `read_prompt`; ``@FOLDER`` stands for the files in a folder by
            name, but hidden ones, ``@PATTERN`` for those named like it (``*``, ``?``, ``[…]``), and
            ``@FILE.jsonl`` for the texts of its lines.
        text_key: where a line's JSON object holds its text.

    Raises:
        InputError: as in `read_prompt`, or a folder or file without texts.
    """
    if arguments.count("-") > 1:
        raise InputError("stdin can be read only once", "give one --prompt -")
    return [prompt for argument in arguments for prompt in _named(argument, text_key)]


def _named(argument: str, text_key: str) -> Iterator[Prompt]:
    path = Path(argument[1:]).expanduser() if argument.startswith("@") else None
    if path and any(c in path.name for c in "*?[") and not path.exists():
        files = sorted(p for p in path.parent.glob(path.name) if p.is_file())
        if not files:
            raise InputError(f"no file is named like '{path}'", "check the pattern")
        for file in files:
            yield from _named(f"@{file}", text_key)
    elif path and path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        if not files:
            raise InputError(f"folder '{path}' holds no files", "put texts into it")
        for file in files:
            yield from _named(f"@{file}", text_key)
    elif path and path.suffix.lower() == ".jsonl":
        yield from _of_lines(argument[1:], text_key)
    else:
        yield read_prompt(argument)


def _of_lines(name: str, text_key: str) -> Iterator[Prompt]:
    """A text a line of JSON."""
    found = 0
    for number, line in enumerate(_decode(_read_file(name), name).split("\n"), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)[text_key]
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            text = None
        if not isinstance(text, str):
            raise InputError(
                f"line {number} of '{name}' has no text under '{text_key}'",
                "each line is a JSON object; --text-key names the key of the text",
            )
        found += 1
        yield Prompt(text, f"{name}:{number}")
    if not found:
        raise InputError(f"'{name}' holds no lines", "each line is a JSON object")


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
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        offset = len(data) - len(error.object) + error.start  # a mark at the start is not in it
        raise InputError(
            f"the prompt from {name} is not UTF-8 text: byte {data[offset]:#04x} at offset "
            f"{offset}",
            "convert it with iconv first",
        ) from None
