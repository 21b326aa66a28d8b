"""Commands that pack prompt caches, and unpack them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cachegen_cli import console
from cachegen_cli.errors import CachegenError, UsageError
from cachegen_cli.options.flatten import takes_options
from cachegen_cli.options.inputs import InputOptions
from cachegen_cli.options.outputs import ArtifactOptions, ReportOptions
from cachegen_cli.options.settings import EstimateOptions, WidthOptions
from cachegen_cli.progress import Progress
from cachegen_cli.results.files import PackedFile, PackedFiles
from cachegen_cli.wording import counted

PACK_EXAMPLES = """\b
Examples:
  cachegen pack --prompt @notes.txt -o notes.cgkv
  cachegen pack --prompt-cache-file notes.safetensors --bits 8 -o notes.cgkv
  cachegen pack --all caches/"""


UNPACK_EXAMPLES = """\b
Examples:
  cachegen unpack notes.cgkv -o notes.safetensors
  mlx_lm.generate --prompt-cache-file notes.safetensors --prompt "And then?"
  cachegen unpack --all caches/"""


@takes_options
def pack(
    *,
    artifact: ArtifactOptions,
    tokens: Annotated[
        bool, typer.Option("--tokens/--no-tokens", help="Keep the prompt's token ids in the file.")
    ] = True,
    widths: WidthOptions,
    quantizer: EstimateOptions,
    source: InputOptions,
    report: ReportOptions,
) -> None:
    """Quantize and code a prompt cache into a .cgkv file."""
    from cachegen_cli import packing
    from cachegen_cli.captures import Capture, capture
    from cachegen_cli.units import profile_of

    target = artifact.check(".cgkv")
    settings = widths.settings(quantizer)
    if artifact.all:
        if option := source.given():
            raise UsageError(f"--all packs the files of a folder, without {option}", "leave it out")

        def pack_one(path: Path, to: Path, progress: Progress) -> PackedFile:
            return packing.pack(path, to, settings, with_tokens=tokens, progress=progress)

        _do_all("pack", artifact.pending(".safetensors", ".cgkv"), report, pack_one)
        return
    with console.progress(report.quiet) as progress:
        given = source.capture_options(report.quiet, reads_on=False)
        cache = given.pop("source")
        if not isinstance(cache, Capture):
            cache = capture(cache, **given, profile=profile_of(settings), progress=progress)
        result = packing.pack(cache, target, settings, with_tokens=tokens, progress=progress)
    _report_one(result, report, target)


@takes_options
def unpack(
    *,
    file: Annotated[Path | None, typer.Argument(help="A .cgkv file.", show_default=False)] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile", metavar="FILE", help="The profile that it was packed with, if any."
        ),
    ] = None,
    artifact: ArtifactOptions,
    report: ReportOptions,
) -> None:
    """Write a .cgkv file as a prompt cache that mlx-lm loads."""
    from cachegen_cli import unpacking

    console.silence_libraries(report.quiet)
    target = artifact.check(".safetensors")
    if artifact.all:
        if file is not None:
            raise UsageError("--all unpacks the files of a folder", f"leave out '{file}'")

        def unpack_one(path: Path, to: Path, progress: Progress) -> PackedFile:
            return unpacking.unpack(path, to, profile=profile, progress=progress)

        _do_all("unpack", artifact.pending(".cgkv", ".safetensors"), report, unpack_one)
        return
    if file is None:
        raise UsageError("no file to unpack is named", "cachegen unpack FILE.cgkv -o OUT")
    if profile and not unpacking.inspect(file).measurement.settings.profile:
        raise UsageError(f"'{file}' was packed without a profile", "leave out --profile")
    with console.progress(report.quiet) as progress:
        result = unpacking.unpack(file, target, profile=profile, progress=progress)
    _report_one(result, report, target)


def _report_one(result: PackedFile, report: ReportOptions, target: Path) -> None:
    report.deliver(result, [notice.message for notice in result.warnings])
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
        console.note(f"done already: {counted(pending[1], 'file')}; --force does all again")
    for failure in errors:
        console.print_error(failure)
    if errors:
        raise typer.Exit(1)
