"""Prompt caches to .cgkv files and back, layer by layer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from cachegen_cli.captures import Capture
from cachegen_cli.coding.container import Reader, Writer
from cachegen_cli.coding.sections import Section
from cachegen_cli.coding.streams import HEADER_BYTES, claims, decode, decode_wide, split
from cachegen_cli.device import mx
from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.headers import file_header, layer_entry, tensor_entry
from cachegen_cli.kvcache import TOKENS, CacheFile, LayerKV, make_cache, save_cache
from cachegen_cli.measuring import quantized, stepped
from cachegen_cli.output import drafted, sync
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.results import LayerResult, Measurement, PackedFile, Settings, TensorResult
from cachegen_cli.results.picking import pick
from cachegen_cli.rows import Context, Rows, rows_at
from cachegen_cli.schedules import check
from cachegen_cli.schemes import Scheme, from_header
from cachegen_cli.stepping import is_open
from cachegen_cli.tensors import Tensor


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
    else:
        layers, n_layers, tokens = source.layers(), len(source.entries), source.take_tokens()
        context = Context(tuple(tokens))
    path = Path(path)
    with drafted(path) as draft, draft.open("xb") as file:
        writer = Writer(file)
        found = list(_write_layers(writer, layers, n_layers, settings, context, progress))
        if not found:
            raise InputError("the cache has no entries, so there is nothing to pack")
        header = file_header(settings, source.metadata, tokens, found, with_tokens)
        size = writer.finish(header)
        sync(file)
    return _packed_file("pack", str(path), header, size)


def unpack(path: Path | str, target: Path | str, *, progress: Progress = no_progress) -> PackedFile:
    """Write a .cgkv file's cache as a prompt cache for the installed mlx-lm.

    Raises:
        InputError: the file is damaged or was not written by `pack`.
        OutputError: the target cannot be written.
    """
    reader = Reader.open(Path(path))
    cache = make_cache(read_layers(reader, progress))
    metadata = {str(k): str(v) for k, v in reader.header["metadata"].items()}
    if tokens := reader.header.get("tokens"):
        metadata[TOKENS] = " ".join(map(str, tokens))
    save_cache(Path(target), cache, metadata)
    return _packed_file("unpack", str(path), reader.header, reader.file_bytes)


def load_packed(path: Path | str, model: Any = None) -> list[Any]:
    """A .cgkv file's cache as a live mlx-lm prompt cache, without a file between.

    Args:
        path: the file.
        model: the mlx-lm model that will go on from it, to check that its cache has as
            many entries; None to skip the check.

    Returns:
        A list of mlx-lm caches; entry i holds keys and values [1, n_kv_heads, tokens,
        head_dim] in the model's 16-bit dtype.

    Raises:
        InputError: the file is damaged, or its layers are not the model's.
    """
    reader = Reader.open(Path(path))
    if model is not None:
        from mlx_lm.models.cache import make_prompt_cache

        expected, held = len(make_prompt_cache(model)), len(reader.header["layers"])
        if expected != held:
            raise InputError(
                f"'{path}' holds {held} layers and the model's cache has {expected} entries",
                "take the model that the file was packed from",
            )
    return make_cache(read_layers(reader))


def inspect(path: Path | str) -> PackedFile:
    """What a .cgkv file's header says, without decoding anything.

    Raises:
        InputError: not such a file, or its header is damaged.
    """
    reader = Reader.open(Path(path))
    return _packed_file("inspect", str(path), reader.header, reader.file_bytes)


def read_layers(reader: Reader, progress: Progress = no_progress) -> Iterator[LayerKV]:
    """Decode a file layer by layer, after checking that all of them fit into memory.

    Raises:
        InputError: a section is damaged, or does not fit the header.
    """
    header = reader.header
    _check_memory(reader)
    for index, layer in enumerate(header["layers"]):
        progress("unpack", index, len(header["layers"]))
        keys, values = (
            _restored(reader.section(index, name), layer, name, header.get("repeats", []))
            for name in ("keys", "values")
        )
        mx.eval(keys, values)
        yield LayerKV(
            layer["layer"], layer["cache"], keys, values,
            layer["tokens_seen"], layer["window"], layer["sinks"],
        )  # fmt: skip
    progress("unpack", len(header["layers"]), len(header["layers"]))


def _write_layers(
    writer: Writer,
    layers: Iterable[LayerKV],
    n_layers: int,
    settings: Settings,
    context: Context,
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    for done, kv in enumerate(layers):
        progress("pack", done, n_layers)
        tensors = quantized(kv, done, n_layers, settings, context)
        keys, values = (_write_tensor(writer, tensor) for tensor in tensors)
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


def _restored(section: Section, layer: dict[str, Any], name: str, text: Sequence[int]) -> mx.array:
    """A tensor [H, T, D] from its section; ``text`` are the tokens of `Context`.

    Raises:
        InputError: the section does not fit the header.
    """
    heads, tokens, place = layer["heads"], layer["tokens"], layer[name]
    dim, first, last = place["dim"], place["kept_first"], place["kept_last"]
    coded = tokens - first - last
    dtype = getattr(mx, layer["dtype"])
    label = f"layer {layer['layer']}'s {name}"
    try:
        edges = mx.array(section.read_kept(heads, first + last, dim)).view(dtype)
        scheme = from_header(place["scheme"])
        if scheme.plane_bits != (0,) and place["bits"] != sum(scheme.plane_bits):
            raise InputError("its scheme has another width than the header says")
        seen, window, sinks = layer["tokens_seen"], layer["window"], layer["sinks"]
        rows = rows_at(tokens, seen, window, sinks, text).cut(first, last)
        planes = decoded_planes(section, scheme, (heads, dim, coded), rows)
        if not coded:
            return edges
        values = scheme.restore(planes, section.parameters, section.wide, dtype, rows)
    except InputError as error:
        raise InputError(f"{label}: {error.message}", "the file is damaged") from error
    return mx.concatenate([edges[:, :first], values, edges[:, first:]], axis=1)


def decoded_planes(
    section: Section, scheme: Scheme, shape: tuple[int, int, int], rows: Rows
) -> list[npt.NDArray[Any]]:
    """The codes [H, D, T] of every plane of a scheme.

    Raises:
        InputError: they have another shape or width.
    """
    heads, dim, tokens = shape
    streams = split(section.stream, len(scheme.plane_bits))
    for stream, bits in zip(streams, scheme.plane_bits, strict=True):
        # before decoding: a forged stream could claim far more than the header, which was checked
        claimed = claims(stream)
        if claimed[1:] != (heads * dim, tokens) or (bits and claimed[0] != bits):
            raise InputError("its codes have another width or shape than the header says")
    return [
        (decode(stream) if bits else decode_wide(stream, heads * dim, rows.repeats)).reshape(shape)
        for stream, bits in zip(streams, scheme.plane_bits, strict=True)
    ]


def _check_memory(reader: Reader) -> None:
    """Refuse a file whose decoded tensors would not fit into free memory."""
    needed = sum(
        2 * layer["heads"] * layer["tokens"] * layer[name]["dim"]
        for layer in reader.header["layers"]
        for name in ("keys", "values")
    )
    free = _free_memory()
    if free is not None and needed > free:
        raise InputError(
            f"'{reader.path}' holds {needed} bytes of 16-bit values and {free} bytes are free",
            "unpack it on a machine with more memory",
        )


def _free_memory() -> int | None:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not a name that macOS knows
        limit = mx.device_info().get("max_recommended_working_set_size")
        return int(limit) if limit else None


def _packed_file(action: str, path: str, header: dict[str, Any], size: int) -> PackedFile:
    try:
        layers = tuple(
            LayerResult(
                layer["layer"], layer["cache"], layer["tokens"], layer["tokens_seen"],
                pick(TensorResult, layer["keys"]["sizes"]),
                pick(TensorResult, layer["values"]["sizes"]),
            )
            for layer in header["layers"]
        )  # fmt: skip
        measured = Measurement(Settings.from_json(header["settings"]), layers, size)
        return PackedFile(
            action=action,
            file=path,
            tool={"name": "cachegen", "version": header["tool"], "coder": header["coder"]},
            metadata={str(k): str(v) for k, v in header["metadata"].items()},
            prompt_tokens=len(header.get("tokens") or []),
            measurement=measured,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"the header of '{path}' lacks what it must hold: {error}", "get the file again"
        ) from error
