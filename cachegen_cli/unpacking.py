"""The .cgkv files that `packing` writes, back to prompt caches, layer by layer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from cachegen_cli.coding.container import TENSORS, Reader
from cachegen_cli.coding.sections import Section
from cachegen_cli.coding.streams import claims, decode, decode_wide, split
from cachegen_cli.device import mx
from cachegen_cli.errors import InputError
from cachegen_cli.headers import packed_file
from cachegen_cli.kvcache import TOKENS, LayerKV, make_cache, save_cache
from cachegen_cli.kvcache import split as split_entries
from cachegen_cli.parallel import CODERS, ahead, in_process
from cachegen_cli.profilefiles import load_profile
from cachegen_cli.profiles import Profile
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.results.files import PackedFile
from cachegen_cli.results.spans import spans
from cachegen_cli.rows import Rows, rows_at
from cachegen_cli.schemes import Scheme, code_shape, expected_of, from_header
from cachegen_cli.wording import counted


def unpack(
    path: Path | str,
    target: Path | str,
    *,
    profile: Path | str | None = None,
    progress: Progress = no_progress,
) -> PackedFile:
    """Write a .cgkv file's cache as a prompt cache for the installed mlx-lm.

    Args:
        profile: the one that the file was packed with, if it was with one.

    Raises:
        InputError: the file is damaged or was not written by `pack`.
        OutputError: the target cannot be written.
    """
    reader = Reader.open(Path(path))
    known = load_profile(profile) if profile else None
    cache = make_cache(read_layers(reader, known, progress))
    metadata = {str(k): str(v) for k, v in reader.header["metadata"].items()}
    if tokens := reader.header.get("tokens"):
        metadata[TOKENS] = " ".join(map(str, tokens))
    save_cache(Path(target), cache, metadata)
    return packed_file("unpack", str(path), reader.header, reader.file_bytes)


def load_packed(
    path: Path | str, model: Any = None, *, profile: Path | str | None = None
) -> list[Any]:
    """A .cgkv file's cache as a live mlx-lm prompt cache, without a file between.

    Args:
        path: the file.
        model: the mlx-lm model that will go on from it, to check that its cache has as
            many entries; None to skip the check.
        profile: the one that the file was packed with, if it was with one.

    Returns:
        A list of mlx-lm caches; entry i holds keys and values [1, n_kv_heads, tokens,
        head_dim] in the model's 16-bit dtype.

    Raises:
        InputError: the file is damaged, or its layers are not the model's.
    """
    reader = Reader.open(Path(path))
    if model is not None:
        from mlx_lm.models.cache import make_prompt_cache

        held = sum(len(layer["members"]) or 1 for layer in reader.header["layers"])
        expected = len(make_prompt_cache(model))
        if expected != held:
            raise InputError(
                f"'{path}' holds {counted(held, 'layer')} and the model's cache has "
                f"{counted(expected, 'entry')}",
                "take the model that the file was packed from",
            )
    return make_cache(read_layers(reader, load_profile(profile) if profile else None))


def inspect(path: Path | str) -> PackedFile:
    """What a .cgkv file's header says, without decoding anything.

    Raises:
        InputError: not such a file, or its header is damaged.
    """
    reader = Reader.open(Path(path))
    return packed_file("inspect", str(path), reader.header, reader.file_bytes)


def read_layers(
    reader: Reader, profile: Profile | None = None, progress: Progress = no_progress
) -> Iterator[LayerKV]:
    """Decode a file unit by unit, after checking that all of them fit into memory.

    Raises:
        InputError: a section is damaged, or does not fit the header.
    """
    layers = reader.header["layers"]
    _check_memory(reader)
    keys = mx.zeros(0)
    for index, name, decoded in ahead(_jobs(reader, profile), CODERS):
        progress("unpack", index, len(layers))
        values = decoded.restored()
        mx.eval(values)
        if name == "keys":
            keys = values
            continue
        layer = layers[index]
        yield from split_entries(
            LayerKV(
                layer["layer"], layer["cache"], keys, values,
                layer["tokens_seen"], layer["window"], layer["sinks"],
                tuple((member, heads) for member, heads in layer["members"]),
            )
        )  # fmt: skip
    progress("unpack", len(layers), len(layers))


def _jobs(
    reader: Reader, profile: Profile | None
) -> Iterator[Callable[[], tuple[int, str, _Decoded]]]:
    """What there is to decode: (index of the layer, "keys" or "values", the tensor)."""
    text = reader.header.get("repeats", [])
    for index, layer in enumerate(reader.header["layers"]):
        for name in TENSORS:
            tensor = _Tensor(layer, name, text, profile)
            yield partial(_decoded, reader, index, name, tensor)


def _decoded(reader: Reader, index: int, name: str, tensor: _Tensor) -> tuple[int, str, _Decoded]:
    section = reader.section(index, name)
    with tensor.named():
        shape = (*code_shape(tensor.scheme, tensor.heads, tensor.dim), tensor.coded)
        planes = decoded_planes(section, tensor.scheme, shape, tensor.rows)
    return index, name, _Decoded(tensor, section, planes)


class _Tensor:
    """What a file's header says of a tensor.

    Args:
        text: the tokens of `Context`.

    Raises:
        InputError: its scheme cannot be read.
    """

    def __init__(
        self, layer: dict[str, Any], name: str, text: Sequence[int], profile: Profile | None
    ) -> None:
        place = layer[name]
        self.heads, self.tokens, self.dim = layer["heads"], layer["tokens"], place["dim"]
        self.first, self.last = place["kept_first"], place["kept_last"]
        self.coded = self.tokens - self.first - self.last
        self.dtype = getattr(mx, layer["dtype"])
        entries = tuple(member for member, _ in layer["members"]) or (layer["layer"],)
        self.label = f"layer {spans(entries)}'s {name}"
        with self.named():
            self.scheme = from_header(place["scheme"], profile, name, entries)
            bits = self.scheme.plane_bits
            if bits != (0,) and place["bits"] != sum(bits):
                raise InputError("its scheme has another width than the header says")
        seen, window, sinks = layer["tokens_seen"], layer["window"], layer["sinks"]
        rows = rows_at(self.tokens, seen, window, sinks, text)
        self.rows = rows.cut(self.first, self.last)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Say in errors which tensor they are of."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{self.label}: {error.message}", error.hint) from error


class _Decoded(NamedTuple):
    """A tensor's codes, before MLX makes values of them."""

    tensor: _Tensor
    section: Section
    planes: list[npt.NDArray[Any]]

    def restored(self) -> mx.array:
        """[H, T, D].

        Raises:
            InputError: the section does not fit the header.
        """
        this, section = self.tensor, self.section
        with this.named():
            kept = section.read_kept(this.heads, this.first + this.last, this.dim)
            edges = mx.array(kept).view(this.dtype)
            if not this.coded:
                return edges
            values = this.scheme.restore(
                self.planes, section.parameters, section.wide, this.dtype, this.rows
            )
        return mx.concatenate([edges[:, : this.first], values, edges[:, this.first :]], axis=1)


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
    expected = expected_of(scheme)
    found = [
        in_process(decode, stream, expected)
        if bits
        else in_process(decode_wide, stream, heads * dim, rows.repeats, expected)
        for stream, bits in zip(streams, scheme.plane_bits, strict=True)
    ]
    return [codes.reshape(shape) for codes in found]


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
