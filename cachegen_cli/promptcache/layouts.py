"""The three layouts of mlx-lm's prompt-cache files, as plain data; knows no MLX.

A  until October 2024: arrays ``{i}_keys`` and ``{i}_values``
B  mlx-lm 0.19.1 to 0.31.3: arrays ``i.0``, ``i.1``; metadata [info, user's, classes]
C  from 0.32.0: arrays of padded buffers and scalars; metadata [user's, classes, scalars]

No file says which. What an entry has seen is None where its layout leaves it out; `counting`
finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# keys of a prompt cache's metadata: the prompt's token ids, what tells its model from others
TOKENS, FINGERPRINT = "tokens", "model_fingerprint"
# the attributes of each class in the order of its state in layout C
FIELDS: dict[str, tuple[str, ...]] = {
    "KVCache": ("keys", "values", "offset"),
    "ConcatenateKVCache": ("keys", "values"),
    "QuantizedKVCache": ("keys", "values", "offset", "group_size", "bits"),
    "RotatingKVCache": ("keys", "values", "offset", "keep", "max_size", "_idx"),
    "ChunkedKVCache": ("keys", "values", "offset", "chunk_size", "start_position"),
    "ArraysCache": ("cache", "left_padding", "lengths"),
    "BatchKVCache": ("keys", "values", "offset", "left_padding", "_idx"),
    "BatchRotatingKVCache": (
        "keys",
        "values",
        "offset",
        "left_padding",
        "max_size",
        "_offset",
        "_idx",
        "rotated",
    ),
}
# classes whose buffers grow ahead of their tokens
PADDED = ("KVCache", "ChunkedKVCache", "QuantizedKVCache")
# the metadata of each class in layout B
META: dict[str, tuple[str, ...]] = {
    "QuantizedKVCache": ("offset", "group_size", "bits"),
    "RotatingKVCache": ("keep", "max_size", "offset", "_idx"),
    "ChunkedKVCache": ("chunk_size", "start_position"),
    "BatchRotatingKVCache": ("max_size", "_offset", "_idx", "rotated"),
}
_SINKS_A = 4  # rows that --max-kv-size kept at the front until 0.19.0
_META_TO_0_28_0 = {
    "QuantizedKVCache": ("step", "offset", "group_size", "bits"),
    "RotatingKVCache": ("keep", "max_size", "step", "offset", "_idx"),
}
BATCH = ("offset", "left_padding")  # arrays after keys and values in layout B
_OLD_NAMES = {"MambaCache": "ArraysCache"}
ROWS = 2  # axis of the tokens


class State:
    """What a file says of a cache entry: its class, and that class's attributes."""

    def __init__(self, cls: str, **attributes: Any) -> None:
        self.cls = cls
        vars(self).update(attributes)

    @property
    def floats(self) -> list[Any]:
        """Return arrays of keys and values, of quantized ones their scales and biases."""
        own = vars(self)
        arrays = [x for part in own.get("caches", ()) for x in part.floats]
        for x in (own.get("keys"), own.get("values")):
            arrays += x[1:] if isinstance(x, list | tuple) else [] if x is None else [x]
        return arrays


class BrokenCache(ValueError):
    """What is wrong with a file, in words for people."""


def what_is_wrong(error: Exception) -> str:
    """What a reader found, or that the file's parts do not fit each other."""
    known = isinstance(error, BrokenCache)
    return str(error)[:300] if known else "its metadata and arrays do not fit together"


def layout_of(names: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """Which layout a file has: "A", "B" or "C".

    Raises:
        ValueError: none of them.
    """
    if any(name.endswith("_keys") for name in names) and "2.0" not in metadata:
        return "A"
    if "2.0" in metadata:  # the first class, or the mark that scalars follow
        return "B" if metadata["2.0"] else "C"
    raise BrokenCache("it has no list of cache classes")


def parse(
    arrays: Mapping[str, Any], metadata: Mapping[str, str]
) -> tuple[str, dict[str, str], list[State]]:
    """(layout, the user's metadata, entries in order) of a file.

    Raises:
        ValueError, KeyError, IndexError, TypeError, AttributeError: it is no prompt cache.
    """
    layout = layout_of(arrays, metadata)
    if layout == "A":
        return layout, dict(metadata), _entries_a(arrays, metadata)
    if layout == "B":
        classes = _nested(_below("2.", metadata))
        states, infos = _nested(arrays), _nested(_below("0.", metadata))
        _check_classes(classes, states)
        entries = [
            _state_b(name, _at(states, place), _at(infos, place))
            for place, name in enumerate(classes)
        ]
        return layout, _below("1.", metadata), entries
    found: dict[str, Any] = dict(arrays)
    place = 1
    while f"2.{place}.0" in metadata:
        name, kind = metadata[f"2.{place}.0"], metadata[f"2.{place}.1"]
        found[name] = _PLAIN[kind](found[name])
        place += 1
    states = _nested(found)
    classes = _nested(_below("1.", metadata))
    _check_classes(classes, states)
    entries = [_state_c(name, states[place]) for place, name in enumerate(classes)]
    return layout, _below("0.", metadata), entries


def _check_classes(classes: Any, states: Any) -> None:
    """Raise BrokenCache unless there are entries and each has a class."""
    if not classes or classes == [""]:
        raise BrokenCache("it has no entries")
    missing = [place for place, name in enumerate(classes) if not name]
    if missing or len(states) > len(classes):
        raise BrokenCache(f"it does not say the class of entry {[*missing, len(classes)][0]}")


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "scalar": lambda array: array.item(),
    "string": lambda array: "".join(map(chr, array.tolist())),
    "none": lambda array: None,
}


def _entries_a(arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> list[State]:
    n = 1 + max(int(name.split("_")[0]) for name in arrays)
    window = metadata.get("max_kv_size", "")  # "None" where none was asked for
    name, ring = "KVCache", {}
    if window.isdecimal():
        name, ring = "RotatingKVCache", {"keep": _SINKS_A, "max_size": int(window), "_idx": None}
    return [
        State(name, keys=arrays[f"{i}_keys"], values=arrays[f"{i}_values"], offset=None, **ring)
        for i in range(n)
    ]


def _state_b(name: str, state: Any, info: Any) -> State:
    name = _OLD_NAMES.get(name, name)
    if name == "CacheList" and isinstance(info, list):
        names, infos = info[0], info[1] if len(info) > 1 else []
        parts = [_state_b(sub, _at(state, i), _at(infos, i)) for i, sub in enumerate(names)]
        return State(name, caches=parts)
    if name == "ArraysCache":
        return State(name, cache=_leaves(state))
    if name not in FIELDS:
        return State(name, arrays=_leaves(state))
    if state is None:
        return State(name, keys=None, values=None, offset=0)
    keys, values = _at(state, 0), _at(state, 1)
    _check_both(name, keys, values)
    own = {"offset": None} | (_numbers(name, info) if name in META else {})
    if name.startswith("Batch"):
        own = {"_idx": keys.shape[ROWS]} | own | dict(zip(BATCH, state[2:], strict=True))
    return State(name, keys=keys, values=values, **own)


def _check_both(name: str, keys: Any, values: Any) -> None:
    if (keys is None) != (values is None):
        lost = "keys" if keys is None else "values"
        raise BrokenCache(f"the {lost} of a {name} are missing in it")


def _numbers(name: str, info: Any) -> dict[str, Any]:
    """A class's attributes out of layout B's metadata, which are texts."""
    given = [text == "True" if text in ("True", "False") else int(text) for text in info or ()]
    names = META[name]
    if len(given) > len(names):
        names = _META_TO_0_28_0.get(name, names)
    found = dict(zip(names, given, strict=True))
    found.pop("step", None)
    return found


def _state_c(name: str, state: Any) -> State:
    name = _OLD_NAMES.get(name, name)
    if name == "CacheList":
        return State(name, caches=[_state_c(sub, part) for part, sub in state])
    if name not in FIELDS:
        return State(name, arrays=_leaves(state))
    if name != "ArraysCache":
        _check_both(name, state[0], state[1])
    return State(name, **{"offset": None} | dict(zip(FIELDS[name], state, strict=True)))


def _below(prefix: str, items: Mapping[str, Any]) -> dict[str, Any]:
    return {key[len(prefix) :]: value for key, value in items.items() if key.startswith(prefix)}


def _nested(items: Mapping[str, Any]) -> Any:
    """Lists within lists, out of paths such as "0.1.3"; None where a place is missing."""
    if not items:
        return []
    if set(items) == {""}:
        return items[""]
    by_place: dict[int, dict[str, Any]] = {}
    for path, value in items.items():
        first, _, rest = path.partition(".")
        by_place.setdefault(int(first), {})[rest] = value
    n = max(by_place) + 1
    if n > 4 * len(by_place) + 64:
        raise BrokenCache("its entries are numbered with gaps")
    return [_nested(by_place[i]) if i in by_place else None for i in range(n)]


def _at(items: Any, place: int) -> Any:
    return items[place] if isinstance(items, list) and place < len(items) else None


def _leaves(state: Any) -> list[Any]:
    if isinstance(state, list):
        return [leaf for part in state for leaf in _leaves(part)]
    return [] if state is None else [state]
