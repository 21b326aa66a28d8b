"""Entries of a prompt cache as the arrays and texts of a file in layout B or C."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cachegen_cli.promptcache.layouts import BATCH, FIELDS, META, ROWS, State
from cachegen_cli.wording import counted


def flat_c(
    states: list[State], user: Mapping[str, str], scalar: Callable[[Any], Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """(arrays, metadata) of layout C.

    Args:
        scalar: makes an array of a number, of a list of numbers, or of None an empty one.
    """
    arrays: dict[str, Any] = {}
    tags: list[tuple[str, str]] = []
    for place, state in enumerate(states):
        for path, value in _flattened(str(place), _c_state(state)):
            if isinstance(value, bool | int | float):
                tags.append((path, "scalar"))
                arrays[path] = scalar(value)
            elif isinstance(value, str):
                tags.append((path, "string"))
                arrays[path] = scalar([ord(char) for char in value])
            elif value is None:
                tags.append((path, "none"))
                arrays[path] = scalar(None)
            else:
                arrays[path] = value
    metadata = {f"0.{key}": value for key, value in user.items()}
    metadata |= {f"1.{place}": state.cls for place, state in enumerate(states)} | {"2.0": ""}
    for place, (path, kind) in enumerate(tags, 1):
        metadata |= {f"2.{place}.0": path, f"2.{place}.1": kind}
    return arrays, metadata


def flat_b(states: list[State], user: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(arrays, metadata) of layout B, with the valid rows alone."""
    arrays: dict[str, Any] = {}
    metadata = {f"1.{key}": value for key, value in user.items()}
    for place, state in enumerate(states):
        metadata[f"2.{place}"] = state.cls
        value, info = _b_state(state)
        arrays |= dict(_flattened(str(place), value))
        metadata |= dict(_flattened(f"0.{place}", info))
    return arrays, metadata


def _c_state(state: State) -> list[Any]:
    if state.cls == "CacheList":
        return [[_c_state(part), part.cls] for part in vars(state)["caches"]]
    if state.cls not in FIELDS:
        raise ValueError(f"{state.cls} is of no class that can be written")
    return [vars(state).get(name) for name in FIELDS[state.cls]]


def _b_state(state: State) -> tuple[Any, Any]:
    """(arrays, metadata) of an entry."""
    own = vars(state)
    if state.cls == "CacheList":
        parts = [_b_state(part) for part in own["caches"]]
        names = [part.cls for part in own["caches"]]
        return [value for value, _ in parts], [names, [info for _, info in parts]]
    if state.cls == "ArraysCache":
        return [array for array in own["cache"] if array is not None], ""
    if state.cls not in FIELDS:
        raise ValueError(f"layout B has no {state.cls}")
    keys, values = own["keys"], own["values"]
    if keys is None:
        raise ValueError("layout B has no place for an empty entry")
    rows = (keys[0] if isinstance(keys, list | tuple) else keys).shape[ROWS]
    if state.cls == "BatchKVCache":
        n = int(own["_idx"])
    elif "max_size" in own:  # a ring is written whole, with where it begins
        n = int(own.get("_offset", own["offset"]))
    else:
        lost = int(own.get("start_position", 0))
        if lost:  # mlx-lm takes the rows that it finds there for all that were seen
            raise ValueError(
                f"layout B has no place for a {state.cls} that has lost {counted(lost, 'token')}"
            )
        n = int(own.get("offset", rows))
    info = [str(own[name]) for name in META.get(state.cls, ())]
    more = [own[name] for name in BATCH] if state.cls.startswith("Batch") else []
    return [cut(keys, n), cut(values, n), *more], info or ""


def cut(x: Any, n: int) -> Any:
    """The first n rows of an array, or of each part of packed codes."""
    return [part[..., :n, :] for part in x] if isinstance(x, list | tuple) else x[..., :n, :]


def _flattened(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        return [
            leaf for place, part in enumerate(value) for leaf in _flattened(f"{path}.{place}", part)
        ]
    return [(path, value)]
