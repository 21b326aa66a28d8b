"""Prompt caches to .cgkv files, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cachegen_cli.captures import Capture
from cachegen_cli.coding.container import CLASSES, TENSORS, Writer
from cachegen_cli.coding.framing import HEADER_BYTES
from cachegen_cli.coding.sections import Section
from cachegen_cli.coding.streams import split
from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.filed import capture_file
from cachegen_cli.headers import file_header, layer_entry, packed_file, tensor_entry
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.kvcache import split as split_entries
from cachegen_cli.measuring import stepped
from cachegen_cli.notices import notices_of
from cachegen_cli.output import drafted, sync
from cachegen_cli.parallel import CODERS, ahead
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.quantizing import tensors
from cachegen_cli.results.files import PackedFile
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.sizes import TensorResult
from cachegen_cli.results.spans import Entry
from cachegen_cli.rows import Context
from cachegen_cli.schedules import check
from cachegen_cli.stepping import is_open
from cachegen_cli.tensors import Tensor
from cachegen_cli.units import units


def pack(
    source: Capture | Path | str,
    path: Path | str,
    settings: Settings | None = None,
    *,
    with_tokens: bool = True,
    progress: Progress = no_progress,
) -> PackedFile:
    """Quantize and code a KV cache into a .cgkv file, which appears complete or not at all.

    Args:
        source: a capture, or the path of a prompt-cache file of mlx-lm.
        path: where to write; an existing file is replaced.
        settings: how to quantize; 4 bits in groups of 32 by default.
        with_tokens: keep the prompt's token ids, where they are known, in the header.
        progress: called with (stage, done, of).

    Raises:
        InputError: entries that cannot be packed, or values that are not finite.
        OutputError: the file cannot be written.
        UsageError: impossible settings.
    """
    settings = settings or Settings()
    check(settings)
    if is_open(settings) and not isinstance(source, Capture):
        raise UsageError(
            "a target has to be found on a model's run", f"give {settings.scheme}:error=N"
        )
    if not isinstance(source, Capture):
        source = capture_file(source)
    settings = stepped(settings, source)
    for skipped in source.skipped:
        raise _cannot(skipped.entry, skipped.cache, skipped.reason)
    layers = units(source.layers, settings, source.fingerprint)
    n_layers, context = len(source.layers), source.context
    path = Path(path)
    with drafted(path) as draft, draft.open("xb") as file:
        writer = Writer(file)
        found = list(_write_layers(writer, layers, n_layers, settings, context, progress))
        warnings = notices_of(source, [settings], ())
        header = file_header(settings, source.metadata, source.tokens, found, with_tokens, warnings)
        size = writer.finish(header)
        sync(file)
    return packed_file("pack", str(path), header, size)


def _cannot(entry: Entry, cache: str, reason: str) -> InputError:
    return InputError(
        f"cache entry {entry} ({cache}) cannot be packed: {reason}",
        f"only caches of {', '.join(CLASSES)} entries can",
    )


def _check_packable(kv: LayerKV) -> None:
    """Raise InputError where `unpack` could not make the entry again."""
    kv.check_known("packed")
    if isinstance(kv.layer, str):
        raise _cannot(kv.layer, kv.cache, "it is part of another")
    if kv.stored:
        raise _cannot(kv.layer, kv.cache, f"it is quantized already ({kv.stored.text})")
    if kv.cache not in CLASSES:
        raise _cannot(kv.layer, kv.cache, "unpack makes no such cache")


def _write_layers(
    writer: Writer,
    layers: Iterable[LayerKV],
    n_layers: int,
    settings: Settings,
    context: Context,
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    done, keys = 0, None
    for kv, name, section, sizes, described in ahead(
        _jobs(layers, n_layers, settings, context), CODERS
    ):
        progress("pack", done, n_layers)
        entry = tensor_entry(described, writer.add(section), sizes)
        if name == "keys":
            keys = entry
        elif keys is not None:
            done += len(kv.layers)
            yield layer_entry(kv, keys, entry)
    progress("pack", n_layers, n_layers)


_Coded = tuple[LayerKV, str, Section, TensorResult, dict[str, Any]]


def _jobs(
    layers: Iterable[LayerKV], n_layers: int, settings: Settings, context: Context
) -> Iterator[Callable[[], _Coded]]:
    """What is left to do for each tensor once it is quantized."""
    place = 0
    for kv in layers:
        for one in split_entries(kv):
            _check_packable(one)
        for name in TENSORS:
            [tensor] = tensors(kv, name, place, n_layers, [settings], context)
            yield partial(_coded, kv, name, tensor.settle())
            del tensor
        place += len(kv.layers)


def _coded(kv: LayerKV, name: str, tensor: Tensor) -> _Coded:
    section = tensor.section()
    sizes = actual(tensor.result(), section, len(tensor.planes))
    return kv, name, section, sizes, tensor.described()


def actual(predicted: TensorResult, section: Section, planes: int) -> TensorResult:
    """A tensor's sizes with what was written in the place of what was predicted."""
    table_bytes = sum(
        int.from_bytes(stream[HEADER_BYTES - 8 : HEADER_BYTES - 4], "little")
        for stream in split(section.stream, planes)
    )
    payload = len(section.stream) - planes * HEADER_BYTES - table_bytes
    return replace(predicted, table_bytes=table_bytes, payload_bytes=payload)
