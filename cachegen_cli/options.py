"""Options that commands share, as dataclasses that a command takes as parameters.

`takes_options` flattens the dataclasses of a command's signature into the options that
Typer sees, so that a group is written down once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from cachegen_cli import console
from cachegen_cli.errors import UsageError
from cachegen_cli.output import SUFFIXES, check_target, write_text
from cachegen_cli.prompt import Prompt, read_prompt
from cachegen_cli.results import Result, Settings

Format = Literal["table", "json", "csv", "markdown"]


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


@dataclass(frozen=True)
class ReportOptions:
    """What a report looks like on stdout."""

    format: Annotated[
        Format | None,
        typer.Option("--format", "-f", help="Default: by the suffix of -o, else table."),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False
    wide: Annotated[
        bool, typer.Option("--wide", help="Keys and values apart, with all that is known.")
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, notes or warnings.")
    ] = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself before any work is done."""
        if self.json and self.format not in (None, "json"):
            raise UsageError(f"--json and --format {self.format} exclude each other", "give one")

    @property
    def chosen(self) -> str:
        """The format."""
        return "json" if self.json else self.format or "table"

    @property
    def target(self) -> Path | None:
        """The file to write, or None for stdout."""
        return None

    def deliver(self, result: Result, warnings: Sequence[str] = ()) -> None:
        """Render the result and print or write it, then its warnings."""
        from cachegen_cli.report import render

        width, color = (80, False) if self.target else console.stdout_style()
        text = render(result, self.chosen, wide=self.wide, width=width, color=color)
        if self.target:
            write_text(self.target, text)
        else:
            console.print_result(text)
        if not self.quiet:
            console.warn(warnings)
            if self.target:
                console.note(f"Wrote {self.target}")


@dataclass(frozen=True)
class OutputOptions(ReportOptions):
    """Where the result goes and what it looks like."""

    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write .txt, .json, .csv or .md; - is stdout."
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the output file if it exists.")
    ] = False

    def __post_init__(self) -> None:
        """Settle format and target before any work is done."""
        super().__post_init__()
        if self.target:
            check_target(self.target, self.force)
            if not (self.json or self.format) and self.target.suffix.lower() not in SUFFIXES:
                raise UsageError(
                    f"the suffix of '{self.target}' names no format",
                    f"use {' '.join(SUFFIXES)}, or add --format",
                )

    @property
    def target(self) -> Path | None:
        """The file to write, or None for stdout."""
        return self.output if self.output and str(self.output) != "-" else None

    @property
    def chosen(self) -> str:
        """The format that was asked for, or that the file's suffix names."""
        if self.target and not (self.json or self.format):
            return SUFFIXES[self.target.suffix.lower()]
        return super().chosen


@dataclass(frozen=True)
class ArtifactOptions:
    """Where a command writes what it makes."""

    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")
    ] = None
    all: Annotated[
        Path | None,
        typer.Option("--all", metavar="DIR", help="Do every file in DIR that is not done yet."),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False

    def check(self, suffix: str) -> Path:
        """The file to write, or the folder of --all.

        Raises:
            UsageError: not one of both is given, or it cannot be written.
        """
        if (self.output is None) == (self.all is None):
            raise UsageError("it is not said where to write", f"give -o FILE{suffix} or --all DIR")
        if self.output is None:
            folder = self.all or Path()
            if not folder.is_dir():
                raise UsageError(f"there is no folder '{folder}'", "--all takes a folder")
            return folder
        if self.output.suffix != suffix:
            raise UsageError(f"'{self.output}' does not end in {suffix}", "give it that suffix")
        check_target(self.output, self.force)
        return self.output

    def todo(self, suffix: str, target_suffix: str) -> list[tuple[Path, Path]]:
        """(source, target) of each file in the folder whose target is not there."""
        folder = self.all or Path()
        pairs = [
            (path, path.with_suffix(target_suffix))
            for path in sorted(folder.glob(f"*{suffix}"))
            if path.is_file() and not path.name.startswith(".")
        ]
        return [pair for pair in pairs if self.force or not pair[1].exists()]


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
