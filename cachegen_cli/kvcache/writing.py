"""Prompt caches to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cachegen_cli.device import mx
from cachegen_cli.dtypes import beyond_float16
from cachegen_cli.errors import InputError, OutputError
from cachegen_cli.kvcache.entries import class_name
from cachegen_cli.output import drafted
from cachegen_cli.promptcache.flattening import cut, flat_b, flat_c
from cachegen_cli.promptcache.layouts import FIELDS, PADDED, State

LAYOUTS = ("B", "C")


def save_cache(
    path: Path,
    cache: Sequence[Any],
    metadata: Mapping[str, str],
    layout: str = "C",
    dtype: mx.Dtype | None = None,
) -> None:
    """Write a prompt cache, complete or not at all.

    Args:
        cache: live caches, or what `CacheFile` has of them.
        metadata: the user's.
        layout: "C" is that of the installed mlx-lm, "B" that of 0.19.1 to
            0.31.3; windows and packed codes in it are as from 0.28.1 on.
        dtype: of float32 keys and values in the file; None for as they are.

    Raises:
        InputError: an entry that the layout has no place for.
        OutputError: it cannot be written.
    """
    states = [state_of(entry, dtype) for entry in cache]
    try:
        if layout == "B":
            arrays, strings = flat_b(states, metadata)
        else:
            arrays, strings = flat_c(states, metadata, _array)
    except ValueError as error:
        raise InputError(f"the cache cannot be written: {error}", "take the other layout") from (
            error
        )
    with drafted(path, ".safetensors") as draft:
        try:
            mx.save_safetensors(str(draft), arrays, strings)
        except RuntimeError as error:  # how MLX says that it cannot write
            raise OutputError(f"'{path}' cannot be written: {error}", "choose another place") from (
                error
            )


def state_of(entry: Any, dtype: mx.Dtype | None = None) -> State:
    """A live cache, or a file's, as plain data without rows that were never written."""
    name = class_name(entry)
    if (parts := getattr(entry, "caches", None)) is not None:
        return State(name, caches=[state_of(part, dtype) for part in parts])
    if name == "ArraysCache":
        return State(
            name,
            cache=list(entry.cache),
            left_padding=getattr(entry, "left_padding", None),
            lengths=getattr(entry, "lengths", None),
        )
    if name not in FIELDS:
        raise InputError(f"a cache of class {name} cannot be written", "no layout is known for it")
    found = {field: getattr(entry, field) for field in FIELDS[name]}
    if name in PADDED and found["keys"] is not None:
        rows = int(entry.offset) - int(getattr(entry, "start_position", 0))
        found |= {part: cut(found[part], rows) for part in ("keys", "values")}
    for part in ("keys", "values"):
        if dtype is not None and getattr(found[part], "dtype", None) == mx.float32:
            found[part] = _rounded(found[part], dtype)
    return State(name, **found)


def _rounded(x: mx.array, dtype: mx.Dtype) -> mx.array:
    """Cast finite float32 numbers to numbers that are finite, too; others as they are."""
    rounded = x.astype(dtype)
    if mx.isfinite(x).all() and not mx.isfinite(rounded).all():
        raise beyond_float16("the keys and values")
    return rounded


def _array(value: Any) -> mx.array:
    return mx.array([] if value is None else value)
