"""Options for where results and files go, and what results look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from cachegen_cli import console
from cachegen_cli.errors import UsageError
from cachegen_cli.options.typed import SHOWING, WRITING
from cachegen_cli.output import SUFFIXES, check_target, write_text
from cachegen_cli.ranks import is_first
from cachegen_cli.results.schema import Result, to_json

if TYPE_CHECKING:
    from cachegen_cli.report.choice import Choice

Format = Literal["table", "json", "csv", "markdown", "html"]


@dataclass(frozen=True)
class ReportOptions:
    """What a report looks like on stdout."""

    OWN: ClassVar = SHOWING  # options that change no result

    format: Annotated[
        Format | None,
        typer.Option("--format", "-f", help="Default: by the suffix of -o, else table."),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False
    wide: Annotated[
        bool, typer.Option("--wide", help="Keys and values apart, with all that is known.")
    ] = False
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            help="Sort rows, largest first; --sort=-COLUMN smallest first.",
        ),
    ] = ""
    layers: Annotated[
        str, typer.Option("--layers", metavar="0-5,20", help="Show these layers' rows alone.")
    ] = ""
    top: Annotated[
        int | None, typer.Option("--top", metavar="N", min=1, help="Show the first N rows.")
    ] = None
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, notes or warnings.")
    ] = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself before any work is done."""
        self.choice.check(self.chosen)
        if self.json and self.format not in (None, "json"):
            raise UsageError(f"--json and --format {self.format} exclude each other", "give one")

    @property
    def chosen(self) -> str:
        """The format."""
        return "json" if self.json else self.format or "table"

    @property
    def choice(self) -> Choice:
        """Which rows are shown."""
        from cachegen_cli.report.choice import Choice, layers_named

        return Choice(self.sort, layers_named(self.layers) if self.layers else None, self.top)

    @property
    def target(self) -> Path | None:
        """The file to write, or None for stdout."""
        return None

    def rendered(self, result: Result) -> tuple[str, UsageError | None]:
        """The result as it is shown, and why not the rows that were asked for are."""
        from cachegen_cli.report import render

        style = console.Style() if self.target else console.stdout_style()
        drawn = {"wide": self.wide, **style._asdict()}
        try:
            return render(result, self.chosen, choice=self.choice, **drawn), None
        except UsageError as error:  # only now is it known which columns and layers there are
            return render(result, self.chosen, **drawn), error

    def deliver(self, result: Result, warnings: Sequence[str] = ()) -> None:
        """Render the result and print or write it, then its warnings; on rank 0 alone."""
        if not is_first():
            return
        text, wrong = self.rendered(result)
        if self.target:
            write_text(self.target, text)
        else:
            console.print_result(text)
        if not self.quiet:
            console.warn(warnings)
            if self.target:
                console.note(f"Wrote {self.target}")
        if wrong:
            raise UsageError(f"all rows are shown: {wrong.message}", wrong.hint)


@dataclass(frozen=True)
class OutputOptions(ReportOptions):
    """Where the result goes and what it looks like."""

    OWN: ClassVar = WRITING

    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help=f"Write {', '.join(SUFFIXES)}; - is stdout.",
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the output file if it exists.")
    ] = False

    def __post_init__(self) -> None:
        """Settle format and target before any work is done."""
        if self.target:
            check_target(self.target, self.force)
            if not (self.json or self.format) and self.target.suffix.lower() not in SUFFIXES:
                raise UsageError(
                    f"the suffix of '{self.target}' names no format",
                    f"use {' '.join(SUFFIXES)}, or add --format",
                )
        super().__post_init__()

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
class PlanOptions(ReportOptions):
    """Where a plan is written, beside its report."""

    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.json", help="Write the plan to FILE.json."),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the plan's file if it exists.")
    ] = False

    def __post_init__(self) -> None:
        """Settle the file before any work is done."""
        super().__post_init__()
        if self.output:
            _check_artifact(self.output, ".json", self.force)

    def deliver(self, result: Result, warnings: Sequence[str] = ()) -> None:
        """Write the plan, then print its report and warnings."""
        if self.output:
            write_text(self.output, to_json(result) + "\n")
        super().deliver(result, warnings)
        if self.output and not self.quiet:
            console.note(f"Wrote {self.output}")


@dataclass(frozen=True)
class SafetensorsOptions(ReportOptions):
    """Where a .safetensors file is written, beside its report."""

    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.safetensors", help="The file to write."),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False

    def __post_init__(self) -> None:
        """Settle the file before any work is done."""
        super().__post_init__()
        _check_artifact(self.target_file, ".safetensors", self.force)

    @property
    def target_file(self) -> Path:
        """The file to write."""
        if self.output is None:
            raise UsageError("it is not said where to write", "give -o FILE.safetensors")
        return self.output

    def deliver(self, result: Result, warnings: Sequence[str] = ()) -> None:
        """Print the report and warnings of a file that is written already."""
        super().deliver(result, warnings)
        if not self.quiet:
            console.note(f"Wrote {self.output}")


@dataclass(frozen=True)
class CacheOptions(SafetensorsOptions):
    """Where a prompt cache is written, and in which layout."""

    layout: Annotated[
        Literal["B", "C"],
        typer.Option("--layout", help="B: for mlx-lm to 0.31.3; C: from 0.32.0 on."),
    ] = "C"


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
        _check_artifact(self.output, suffix, self.force)
        return self.output

    def pending(self, suffix: str, target_suffix: str) -> tuple[list[tuple[Path, Path]], int]:
        """((source, target) of each file in the folder that is not done, how many are)."""
        folder = self.all or Path()
        pairs = [
            (path, path.with_suffix(target_suffix))
            for path in sorted(folder.glob(f"*{suffix}"))
            if path.is_file() and not path.name.startswith(".")
        ]
        left = [pair for pair in pairs if self.force or not pair[1].exists()]
        return left, len(pairs) - len(left)


def _check_artifact(path: Path, suffix: str, force: bool) -> None:
    """Refuse a file that cannot or may not be written."""
    if path.suffix.lower() != suffix:
        raise UsageError(f"'{path}' does not end in {suffix}", "give it that suffix")
    check_target(path, force)
