"""The commands: each parses, calls one library function and delivers the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cachegen_cli import __version__, console
from cachegen_cli.errors import CachegenError, UsageError
from cachegen_cli.options import (
    InputOptions,
    Integers,
    QuantizerOptions,
    WidthOptions,
    takes_options,
)
from cachegen_cli.output_options import ArtifactOptions, OutputOptions, ReportOptions
from cachegen_cli.progress import Progress
from cachegen_cli.results import PackedFile, PackedFiles, Run

CHECK_FAILED = 3

app = typer.Typer(
    name="cachegen",
    help="What entropy-coding a language model's KV cache would really save.",
    no_args_is_help=True,
    rich_markup_mode=None,  # Rich would take longer than all the rest of --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_ANALYZE_EXAMPLES = """\b
Examples:
  cachegen analyze
  cachegen analyze --model OWNER/NAME --prompt @notes.txt --bits 3
  cachegen analyze --key-bits 8 --value-bits 4 --wide
  cachegen analyze --json | jq .totals"""

_SWEEP_EXAMPLES = """\b
Examples:
  cachegen sweep --bits 2,3,4,8
  cachegen sweep --bits 2,4 --group-size 32,64 -o sweep.csv
  cachegen sweep --prompt - --json < notes.txt | jq '.rows[].totals'"""

_VERIFY_EXAMPLES = """\b
Examples:
  cachegen verify
  cachegen verify --bits 3 --prompt @notes.txt && echo sound"""

_PACK_EXAMPLES = """\b
Examples:
  cachegen pack --prompt @notes.txt -o notes.cgkv
  cachegen pack --prompt-cache-file notes.safetensors --bits 8 -o notes.cgkv
  cachegen pack --all caches/"""

_UNPACK_EXAMPLES = """\b
Examples:
  cachegen unpack notes.cgkv -o notes.safetensors
  mlx_lm.generate --prompt-cache-file notes.safetensors --prompt "And then?"
  cachegen unpack --all caches/"""

_INSPECT_EXAMPLES = """\b
Examples:
  cachegen inspect notes.cgkv
  cachegen inspect notes.cgkv --json | jq .container_bytes"""

_MODELS_EXAMPLES = """\b
Examples:
  cachegen models
  cachegen models --json | jq -r '.models[].id'"""


def _list_option(help: str) -> Any:
    return typer.Option(parser=Integers.parse, metavar="N,N,...", help=help)


def _version(asked: bool) -> None:
    if asked:
        console.print_result(f"cachegen {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """What entropy-coding a language model's KV cache would really save."""


@app.command(epilog=_ANALYZE_EXAMPLES)
@takes_options
def analyze(
    *,
    widths: WidthOptions,
    quantizer: QuantizerOptions,
    source: InputOptions,
    output: OutputOptions,
) -> None:
    """Compare 16-bit, fixed-width, entropy and coded bytes by layer."""
    from cachegen_cli import analysis

    prepared = source.capture_options(output.quiet)
    with console.progress(output.quiet) as progress:
        result = analysis.analyze(**prepared, **vars(widths), **vars(quantizer), progress=progress)
    output.deliver(result, _messages(result.run))


@app.command(epilog=_SWEEP_EXAMPLES)
@takes_options
def sweep(
    *,
    bits: Annotated[Integers, _list_option("Code widths, each 1 to 8.")] = "2,3,4,8",  # type: ignore[assignment]
    group_size: Annotated[Integers, _list_option("Tokens a group; several make a grid.")] = "32",  # type: ignore[assignment]
    quantizer: QuantizerOptions,
    source: InputOptions,
    output: OutputOptions,
) -> None:
    """Measure several widths and group sizes with one run of the model."""
    from cachegen_cli import analysis

    prepared = source.capture_options(output.quiet)
    with console.progress(output.quiet) as progress:
        result = analysis.sweep(
            **prepared,
            **vars(quantizer),
            bits=bits,
            group_sizes=group_size,
            progress=progress,
        )
    output.deliver(result, _messages(result.run))


@app.command(epilog=_MODELS_EXAMPLES)
@takes_options
def models(output: OutputOptions) -> None:
    """List the models on this machine and their KV cache sizes."""
    from cachegen_cli.catalog import list_models

    with console.progress(output.quiet) as progress:
        result = list_models(progress)
    output.deliver(result)


@app.command(epilog=_VERIFY_EXAMPLES)
@takes_options
def verify(
    *,
    widths: WidthOptions,
    quantizer: QuantizerOptions,
    source: InputOptions,
    output: OutputOptions,
) -> None:
    """Encode and decode every layer for real; exit 3 if one fails."""
    from cachegen_cli import verification

    settings = widths.settings(quantizer)
    prepared = source.capture_options(output.quiet)
    with console.progress(output.quiet) as progress:
        result = verification.verify(**prepared, settings=settings, progress=progress)
    output.deliver(result, _messages(result.run))
    if not result.passed:
        raise typer.Exit(CHECK_FAILED)


@app.command(epilog=_PACK_EXAMPLES)
@takes_options
def pack(
    *,
    artifact: ArtifactOptions,
    prompt_cache_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Pack mlx-lm's prompt cache instead of running a model."),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens/--no-tokens", help="Keep the prompt's token ids in the file.")
    ] = True,
    widths: WidthOptions,
    quantizer: QuantizerOptions,
    source: InputOptions,
    report: ReportOptions,
) -> None:
    """Quantize and code a prompt cache into a .cgkv file."""
    from cachegen_cli import packing
    from cachegen_cli.captures import capture

    target = artifact.check(".cgkv")
    settings = widths.settings(quantizer)
    if artifact.all:

        def pack_one(path: Path, to: Path, progress: Progress) -> PackedFile:
            return packing.pack(path, to, settings, with_tokens=tokens, progress=progress)

        _do_all("pack", artifact.pending(".safetensors", ".cgkv"), report, pack_one)
        return
    if prompt_cache_file and (source.model or source.prompt):
        raise UsageError("a prompt cache needs no model and no prompt", "leave them out")
    with console.progress(report.quiet) as progress:
        cache: Any = prompt_cache_file
        if cache is None:
            prepared = source.capture_options(report.quiet)
            cache = capture(prepared.pop("source"), **prepared, progress=progress)
        result = packing.pack(cache, target, settings, with_tokens=tokens, progress=progress)
    _report_one(result, report, target)


@app.command(epilog=_UNPACK_EXAMPLES)
@takes_options
def unpack(
    *,
    file: Annotated[Path | None, typer.Argument(help="A .cgkv file.", show_default=False)] = None,
    artifact: ArtifactOptions,
    report: ReportOptions,
) -> None:
    """Write a .cgkv file as a prompt cache that mlx-lm loads."""
    from cachegen_cli import packing

    console.silence_libraries(report.quiet)
    target = artifact.check(".safetensors")
    if artifact.all:

        def unpack_one(path: Path, to: Path, progress: Progress) -> PackedFile:
            return packing.unpack(path, to, progress=progress)

        _do_all("unpack", artifact.pending(".cgkv", ".safetensors"), report, unpack_one)
        return
    if file is None:
        raise UsageError("no file to unpack is named", "cachegen unpack FILE.cgkv -o OUT")
    with console.progress(report.quiet) as progress:
        result = packing.unpack(file, target, progress=progress)
    _report_one(result, report, target)


@app.command(epilog=_INSPECT_EXAMPLES)
@takes_options
def inspect(
    *,
    file: Annotated[Path, typer.Argument(help="A .cgkv file.", show_default=False)],
    output: OutputOptions,
) -> None:
    """Print what a .cgkv file holds, without decoding it."""
    from cachegen_cli import packing

    output.deliver(packing.inspect(file))


def _report_one(result: PackedFile, report: ReportOptions, target: Path) -> None:
    report.deliver(result)
    if not report.quiet:
        console.note(f"Wrote {target}")


def _do_all(
    action: str,
    pending: tuple[list[tuple[Path, Path]], int],
    report: ReportOptions,
    work: Callable[[Path, Path, Progress], PackedFile],
) -> None:
    """Do every file; one that cannot be done is named, and the rest are done all the same."""
    done, errors = [], []
    with console.progress(report.quiet) as progress:
        for path, target in pending[0]:
            try:
                done.append(work(path, target, progress))
            except CachegenError as error:
                errors.append(error)
    report.deliver(PackedFiles(action, tuple(done)))
    if pending[1] and not report.quiet:
        console.note(f"{pending[1]} files were done already; --force does them again")
    for failure in errors:
        console.print_error(failure)
    if errors:
        raise typer.Exit(1)


def _messages(run: Run) -> list[str]:
    return [notice.message for notice in run.warnings]
