"""Prompt caches to .cgkv files, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachegen_cli.captures import Capture
from cachegen_cli.coding.container import Writer
from cachegen_cli.coding.sections import Section
from cachegen_cli.coding.streams import HEADER_BYTES, split
from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.headers import file_header, layer_entry, packed_file, tensor_entry
from cachegen_cli.kvcache import CacheFile, LayerKV
from cachegen_cli.measuring import quantized, stepped
from cachegen_cli.output import drafted, sync
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.results import (
    PackedFile,
    Settings,
    TensorResult,
)
from cachegen_cli.rows import Context
from cachegen_cli.schedules import check
from cachegen_cli.stepping import is_open
from cachegen_cli.tensors import Tensor
from cachegen_cli.units import units


def pack(
    source: Capture | CacheFile | Path | str,
    path: Path | str,
    settings: Settings | None = None,
    *,
    with_tokens: bool = True,
    progress: Progress = no_progress,
) -> PackedFile:
    """Quantize and code a KV cache into a .cgkv file, which appears complete or not at all.

    Args:
        source: a capture, or a prompt-cache file of mlx-lm (opened, or its path).
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
        raise UsageError("a target has to be found on a model's run", "give uniform:error=N")
    if isinstance(source, Path | str):
        source = CacheFile.open(Path(source))
    if isinstance(source, Capture):
        settings = stepped(settings, source)
        if source.skipped:
            first = source.skipped[0]
            raise InputError(
                f"cache entry {first.entry} ({first.cache}) cannot be packed: {first.reason}",
                "only caches of KVCache and RotatingKVCache entries can",
            )
        layers: Iterable[LayerKV] = source.layers
        n_layers, tokens, context = len(source.layers), list(source.tokens), source.context
        fingerprint = source.fingerprint
    else:
        layers, n_layers, tokens = source.layers(), len(source.entries), source.take_tokens()
        context, fingerprint = Context(tuple(tokens)), ""
    path = Path(path)
    with drafted(path) as draft, draft.open("xb") as file:
        writer = Writer(file)
        found = list(
            _write_layers(
                writer, units(layers, settings, fingerprint), n_layers, settings, context, progress
            )
        )
        if not found:
            raise InputError("the cache has no entries, so there is nothing to pack")
        header = file_header(settings, source.metadata, tokens, found, with_tokens)
        size = writer.finish(header)
        sync(file)
    return packed_file("pack", str(path), header, size)


def _write_layers(
    writer: Writer,
    layers: Iterable[LayerKV],
    n_layers: int,
    settings: Settings,
    context: Context,
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    done = 0
    for kv in layers:
        progress("pack", done, n_layers)
        tensors = quantized(kv, done, n_layers, settings, context)
        keys, values = (_write_tensor(writer, tensor) for tensor in tensors)
        done += len(kv.layers)
        yield layer_entry(kv, keys, values)
    progress("pack", n_layers, n_layers)


def _write_tensor(writer: Writer, tensor: Tensor) -> dict[str, Any]:
    section = tensor.section()
    sizes = actual(tensor.result(), section, len(tensor.planes))
    return tensor_entry(tensor, writer.add(section), sizes)


def actual(predicted: TensorResult, section: Section, planes: int) -> TensorResult:
    """A tensor's sizes with what was written in the place of what was predicted."""
    table_bytes = sum(
        int.from_bytes(stream[HEADER_BYTES - 8 : HEADER_BYTES - 4], "little")
        for stream in split(section.stream, planes)
    )
    payload = len(section.stream) - planes * HEADER_BYTES - table_bytes
    return replace(predicted, table_bytes=table_bytes, payload_bytes=payload)
