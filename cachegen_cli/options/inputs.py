"""The model, and the texts that it reads."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cachegen_cli import console
from cachegen_cli.errors import UsageError
from cachegen_cli.options import completions
from cachegen_cli.prompt import Prompt, read_prompts
from cachegen_cli.ranks import is_launched


def _prompt_option(more: str) -> Any:
    """The option for texts, with what is to be said of it in a command."""
    return typer.Option(
        "--prompt",
        "-p",
        metavar="TEXT|@FILE|@DIR|-",
        help="A text; @FILE reads a file (.jsonl: a text a line), @DIR every file in it, - stdin. "
        + more,
    )


@dataclass(frozen=True)
class InputOptions:
    """The model, and the prompt that it reads."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            autocompletion=completions.models,
            help="Hugging Face id, model folder or .gguf file. Default: $CACHEGEN_MODEL, or the "
            "bundled SmolLM2-135M-Instruct, or the same model's hub id where it is not installed.",
        ),
    ] = None
    prompt: Annotated[
        list[str] | None,
        _prompt_option("May be repeated where figures can be pooled. Default: a sample."),
    ] = None
    prompt_cache_file: Annotated[
        Path | None,
        typer.Option(
            "--prompt-cache-file",
            metavar="FILE",
            help="Take mlx-lm's prompt cache, of any version, instead of running a model. For "
            "quality add --model, and --prompt with the text that comes next.",
        ),
    ] = None
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option("--max-prompt-tokens", metavar="N", min=1, help="Cut the prompt to N tokens."),
    ] = None
    max_kv_size: Annotated[
        int | None,
        typer.Option(
            "--max-kv-size",
            metavar="N",
            min=1,
            help="Tokens that the cache holds, where the model leaves that to mlx-lm.",
        ),
    ] = None
    chat: Annotated[
        bool,
        typer.Option(
            "--chat/--no-chat",
            help="Put the prompt into the model's chat template, or read it as raw text.",
        ),
    ] = False
    adapter_path: Annotated[
        str | None,
        typer.Option("--adapter-path", metavar="DIR", help="Folder of LoRA adapters to apply."),
    ] = None
    revision: Annotated[
        str | None,
        typer.Option("--revision", metavar="REV", help="Branch, tag or commit of a hub model."),
    ] = None
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let the model's own Python code run.")
    ] = False

    def given(self, *names: str) -> str:
        """Return the first of some options, by default of all, that is not as usual, or ""."""
        for option in fields(self):
            if (not names or option.name in names) and vars(self)[option.name] != option.default:
                return f"--{option.name.replace('_', '-')}"
        return ""

    def capture_options(self, quiet: bool, reads_on: bool = True) -> dict[str, Any]:
        """Keyword arguments of `capture_texts`, with the model as ``source``.

        Args:
            reads_on: whether the model reads on after the cache, so that a text may follow one.

        Raises:
            InputError: a text that cannot be read.
            UsageError: several texts for a command that takes one, or an option without effect.
        """
        console.silence_libraries(quiet)
        if self.prompt_cache_file is not None:
            source = self._filed(self.prompt_cache_file, quiet, reads_on)
            return {"source": source, "prompt": None}
        own = ("model", "text_key", "prompt_cache_file")
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in own}
        return given | {"source": self.model, "prompt": self._texts(quiet)}

    def _filed(self, path: Path, quiet: bool, reads_on: bool) -> Any:
        """The cache of a file, with the model and the text that are given beside it."""
        from cachegen_cli.filed import capture_file
        from cachegen_cli.model import load_model

        if option := self.given("chat", "max_prompt_tokens", "max_kv_size"):
            raise UsageError("a prompt cache has its prompt and its size", f"leave out {option}")
        texts = self._read(quiet) or []
        if texts and not reads_on:
            raise UsageError(
                "the text after a prompt cache is for quality, which is not measured",
                "leave out --prompt, or measure quality ('cachegen quality')",
            )
        if len(texts) > 1:
            raise UsageError(f"{len(texts)} texts are given", "one can come after a prompt cache")
        # a default for all commands asks for no model where no text follows
        name = self.model or (os.environ.get("CACHEGEN_MODEL") if texts else None)
        option = self.given("adapter_path", "revision", "trust_remote_code")
        if option and not name:
            raise UsageError(f"{option} is for a model, and none is loaded here", "add --model")
        model = None
        if name:
            model = load_model(
                name,
                adapter_path=self.adapter_path,
                revision=self.revision,
                trust_remote_code=self.trust_remote_code,
            )
        return capture_file(path, model, texts[0] if texts else None)

    def _texts(self, quiet: bool) -> Prompt | list[Prompt] | None:
        prompts = self._read(quiet)
        if prompts and len(prompts) > 1:
            raise UsageError(f"{len(prompts)} texts are given", "this command takes one")
        return prompts[0] if prompts else None

    def _read(self, quiet: bool, text_key: str | None = None) -> list[Prompt] | None:
        """The texts that are given; raises UsageError for a key that none of them is under."""
        for text in self.prompt or []:
            _note_on(text, quiet)
        prompts = read_prompts(self.prompt, text_key or "text") if self.prompt else None
        if text_key is not None and not any(map(_is_line, prompts or [])):
            raise UsageError("--text-key is for .jsonl files", "give one, as --prompt @FILE.jsonl")
        return prompts


@dataclass(frozen=True)
class TextOptions(InputOptions):
    """The model, and one text or several."""

    text_key: Annotated[
        str | None,
        typer.Option(
            "--text-key", metavar="KEY", help="Where a .jsonl line has its text. Default: text."
        ),
    ] = None

    def _texts(self, quiet: bool) -> list[Prompt] | None:
        return self._read(quiet)

    def _read(self, quiet: bool, text_key: str | None = None) -> list[Prompt] | None:
        return super()._read(quiet, self.text_key)


@dataclass(frozen=True)
class SharedOptions(TextOptions):
    """The model and texts, and what several processes share out."""

    shard: Annotated[
        Literal["prompts", "tensor", "pipeline"],
        typer.Option(
            "--shard",
            help="Under mlx.launch: share out the texts, or let every process hold a part of each "
            "layer's heads (tensor) or of the layers (pipeline), as far as the model can.",
        ),
    ] = "prompts"

    def __post_init__(self) -> None:
        """Refuse to cut a model that nobody holds in parts."""
        if self.shard == "prompts":
            return
        if self.prompt_cache_file is not None:
            raise UsageError("a prompt cache is not cut", "leave out --shard")
        if not is_launched():
            raise UsageError(
                f"--shard {self.shard} is for several processes",
                f"mlx.launch -n 2 --backend ring cachegen ... --shard {self.shard}",
            )


@dataclass(frozen=True)
class CorpusOptions(TextOptions):
    """The model, and the texts that it is calibrated on."""

    prompt: Annotated[
        list[str] | None,
        _prompt_option("May be repeated. Needed."),
    ] = None


def _is_line(prompt: Prompt) -> bool:
    """Return whether a text is a line of a .jsonl file: "FILE.jsonl:3"."""
    file, _, number = prompt.source.rpartition(":")
    return file.lower().endswith(".jsonl") and number.isdecimal()


def _note_on(text: str, quiet: bool) -> None:
    """Say that a file's name is read as text, which is seldom meant."""
    if text and not quiet and len(text) < 256 and "\n" not in text and Path(text).is_file():
        console.note(f"note: '{text}' is read as text; --prompt '@{text}' reads the file")
