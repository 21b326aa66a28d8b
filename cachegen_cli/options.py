"""Options that commands share, as dataclasses that a command takes as parameters.

`takes_options` flattens the dataclasses of a command's signature into the options that
Typer sees, so that a group is written down once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from cachegen_cli import console
from cachegen_cli.prompt import Prompt, read_prompt
from cachegen_cli.results import Settings


class Integers(tuple[int, ...]):
    """Whole numbers that an option lists."""

    @classmethod
    def parse(cls, text: str) -> Integers:
        """Read "2,3,4"."""
        try:
            return cls(int(part) for part in text.split(","))
        except ValueError:
            raise typer.BadParameter(f"'{text}' is not a list like 2,3,4") from None


@dataclass(frozen=True)
class InputOptions:
    """The model, and the prompt that it reads."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            envvar="CACHEGEN_MODEL",
            help="Hugging Face id, model folder or .gguf file. Default: the bundled "
            "SmolLM2-135M-Instruct, or the same model's hub id where it is not installed.",
        ),
    ] = None
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            metavar="TEXT|@FILE|-",
            help="The text that the model reads; @FILE reads a file, - stdin. Default: a sample.",
        ),
    ] = None
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option("--max-prompt-tokens", metavar="N", min=1, help="Cut the prompt to N tokens."),
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

    def capture_options(self, quiet: bool) -> dict[str, Any]:
        """Keyword arguments of `analysis.capture`; reads the prompt."""
        console.silence_libraries(quiet)
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"}
        return given | {"source": self.model, "prompt": self._read_prompt(quiet)}

    def _read_prompt(self, quiet: bool) -> Prompt:
        text = self.prompt
        if text and not quiet and len(text) < 256 and "\n" not in text and Path(text).is_file():
            console.note(f"note: '{text}' is read as text; --prompt '@{text}' reads the file")
        return read_prompt(text)


@dataclass(frozen=True)
class QuantizerOptions:
    """How codes are made and estimated, beside their width and group size."""

    schedule: Annotated[
        Literal["uniform", "depth"],
        typer.Option(
            "--schedule",
            help="depth: one bit fewer in the middle third of the layers, two in the last, never "
            "below 2 bits.",
        ),
    ] = "uniform"
    delta: Annotated[
        Literal["auto", "on", "off"],
        typer.Option(
            "--delta",
            help="Code differences of consecutive tokens; auto: where that is smaller.",
        ),
    ] = "auto"
    pooled: Annotated[
        bool,
        typer.Option(
            "--pooled/--by-channel",
            help="Entropy estimate with one distribution a head, or one a head and channel.",
        ),
    ] = False
    keep_first: Annotated[
        int,
        typer.Option("--keep-first", metavar="N", min=0, help="Leave first N tokens in 16 bits."),
    ] = 0
    keep_last: Annotated[
        int,
        typer.Option("--keep-last", metavar="N", min=0, help="Leave last N tokens in 16 bits."),
    ] = 0


@dataclass(frozen=True)
class WidthOptions:
    """Code widths and group size of one setting."""

    bits: Annotated[int, typer.Option(min=1, max=8, metavar="N", help="Code width, 1 to 8.")] = 4
    key_bits: Annotated[
        int | None, typer.Option(min=1, max=8, metavar="N", help="Keys' width instead of --bits.")
    ] = None
    value_bits: Annotated[
        int | None, typer.Option(min=1, max=8, metavar="N", help="Values' width instead of --bits.")
    ] = None
    group_size: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens a group.")] = 32

    def settings(self, quantizer: QuantizerOptions) -> Settings:
        """The setting that both groups of options make."""
        return Settings(
            key_bits=self.bits if self.key_bits is None else self.key_bits,
            value_bits=self.bits if self.value_bits is None else self.value_bits,
            group_size=self.group_size,
            **vars(quantizer),
        )


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Flatten the dataclass parameters of a command into one parameter a field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @functools.wraps(command)
    def flat(**given: Any) -> None:
        made = {
            name: group(**{f.name: given.pop(f.name) for f in fields(group)})
            for name, group in groups.items()
        }
        command(**made, **given)

    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        name = parameter.name
        if group := groups.get(name):
            parameters += _parameters(group)
        else:
            parameters.append(
                parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            )
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    del flat.__wrapped__
    return flat


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
        )
        for f in fields(group)
    ]
