"""What ``mlx_lm.generate --kv-bits`` would do to each cache entry of a model, by trying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachegen_cli.device import mx
from cachegen_cli.model import one_line

WORKS, CRASHES, NOTHING = "works", "crashes", "nothing"
_BITS, _GROUP = 8, 64  # mlx-lm's default group size
_TOKENS, _TOKEN = 8, 1


def by_entry(network: Any, n_entries: int) -> list[str]:
    """For each entry "works", "nothing: why" or "crashes: why"; "" where it cannot be told.

    The model reads a few tokens, the entries are quantized as mlx-lm does it, and it reads one
    more. mlx-lm does so from the 5,000th token on; a crash of one entry ends its whole run.
    """
    from mlx_lm.models.cache import make_prompt_cache

    unknown = [""] * n_entries
    try:
        cache: list[Any] = make_prompt_cache(network)
        mx.eval(network(mx.array([[_TOKEN] * _TOKENS]), cache=cache))
        if len(cache) != n_entries:
            return unknown
    except Exception:  # mlx and mlx-lm raise whatever comes
        return unknown
    found = []
    for place, entry in enumerate(cache):
        if not hasattr(entry, "to_quantized"):
            found.append(f"{NOTHING}: mlx-lm leaves a {type(entry).__name__} as it is")
            continue
        try:
            cache[place] = entry.to_quantized(group_size=_GROUP, bits=_BITS)
            mx.eval([part for x in (cache[place].keys, cache[place].values) for part in x])
            found.append(WORKS)
        except Exception as error:
            found.append(f"{CRASHES}: {one_line(error)}")
    return _after_reading_on(network, cache, found)


def _after_reading_on(network: Any, cache: Sequence[Any], found: list[str]) -> list[str]:
    if WORKS not in found:
        return found
    try:
        mx.eval(network(mx.array([[_TOKEN]]), cache=list(cache)))
    except Exception as error:
        reason = f"{CRASHES}: {one_line(error)}"
        return [reason if one == WORKS else one for one in found]
    return found
