"""Prompt-cache files of mlx-lm in every layout, read entry by entry without mlx-lm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachegen_cli.device import mx
from cachegen_cli.errors import InputError
from cachegen_cli.kvcache.entries import read_entry
from cachegen_cli.kvcache.layers import LayerKV
from cachegen_cli.kvcache.roles import assign_roles
from cachegen_cli.promptcache.arrays import Described
from cachegen_cli.promptcache.header import Header, read_header
from cachegen_cli.promptcache.layouts import TOKENS, BrokenCache, State, what_is_wrong
from cachegen_cli.results.run import Skipped
from cachegen_cli.wording import counted

# whatever a file that is none may make the readers stumble over
_BROKEN = (ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError)


@dataclass
class CacheFile:
    """A prompt-cache file, opened: arrays are read when they are evaluated.

    Attributes:
        header: what it says without the data.
        entries: the same with arrays of MLX.
    """

    path: Path
    header: Header
    entries: list[State]
    skipped: list[Skipped] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path) -> CacheFile:
        """Open a file.

        Raises:
            InputError: there is none, or it is no prompt cache.
        """
        if not path.is_file():
            raise InputError(f"there is no prompt cache '{path}'", "check the path")
        return cls.again(path, read_header(path))

    @classmethod
    def again(cls, path: Path, header: Header) -> CacheFile:
        """Open a file whose header was read already; errors as in `open`."""
        try:
            arrays: Any = mx.load(str(path))
            entries = [_loaded(entry, arrays) for entry in header.entries]
        except _BROKEN as error:
            raise _no_cache(path, error) from error
        return cls(path, header, entries)

    @property
    def layout(self) -> str:
        """Return the layout: "A", "B" or "C"."""
        return self.header.layout

    @property
    def metadata(self) -> dict[str, str]:
        """The user's."""
        return self.header.metadata

    def take_tokens(self) -> list[int]:
        """The prompt's token ids, out of the metadata, where they are there."""
        found = self.metadata.get(TOKENS, "").split()
        if not found or not all(token.isdecimal() for token in found):
            return []
        del self.metadata[TOKENS]
        return [int(token) for token in found]

    def analysed(self, index: int) -> list[LayerKV]:
        """What an entry holds, not evaluated yet; what is not analysed is in `skipped`.

        Raises:
            InputError: the entry is not what its class says.
        """
        try:
            _check(self.entries[index])
            found = read_entry(index, self.entries[index])
            layers = [one for one in found if isinstance(one, LayerKV)]
            layers, placeholders = assign_roles(layers)
        except _BROKEN as error:
            raise _no_cache(self.path, error, f"entry {index}: ") from error
        self.skipped += [one for one in found if isinstance(one, Skipped)] + placeholders
        return layers


def _loaded(value: Any, arrays: Mapping[str, mx.array]) -> Any:
    """Put a file's arrays in the place of their descriptions."""
    if isinstance(value, Described):
        return arrays[value.name]
    if isinstance(value, State):
        return State(**{name: _loaded(part, arrays) for name, part in vars(value).items()})
    if isinstance(value, list):
        return [_loaded(part, arrays) for part in value]
    return value


def _check(entry: State) -> None:
    """Raise BrokenCache unless an entry's numbers fit its arrays."""
    own = vars(entry)
    for part in own.get("caches", ()):
        _check(part)
    keys: Any = own.get("keys")
    values: Any = own.get("values")
    if keys is None:
        return
    packed = isinstance(keys, list | tuple)
    if not packed and not all(mx.issubdtype(x.dtype, mx.floating) for x in (keys, values)):
        raise BrokenCache("keys and values are no floating-point numbers")
    rows = (keys[0] if packed else keys).shape[2]
    for name in ("offset", "start_position", "keep", "max_size", "_idx", "chunk_size"):
        value = own.get(name, 0)
        if isinstance(value, float) or (isinstance(value, int) and value < 0):
            raise BrokenCache(f"{name} is {value}")
    if "max_size" in own and not 0 <= own.get("keep", 0) <= own["max_size"] > 0:
        raise BrokenCache(f"a window of {own['max_size']} keeps {own.get('keep')}")
    if isinstance(own.get("_idx"), int) and own["_idx"] > rows:
        raise BrokenCache(f"its write place is {own['_idx']} of {rows} rows")
    offset = own["offset"]
    held = offset - own.get("start_position", 0) if isinstance(offset, int) else 0
    if not held >= 0 or (held > rows and "max_size" not in own):
        raise BrokenCache(f"{counted(held, 'token')} in {counted(rows, 'row')}")


def _no_cache(path: Path, error: Exception, where: str = "") -> InputError:
    return InputError(
        f"'{path}' is not a prompt cache that can be read: {where}{what_is_wrong(error)}",
        "name a file that mlx_lm.cache_prompt, save_prompt_cache or 'cachegen capture' wrote",
    )
