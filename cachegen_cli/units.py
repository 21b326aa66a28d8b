"""What is coded as one: a cache entry, or all entries that share a basis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cachegen_cli.errors import InputError
from cachegen_cli.kvcache import LayerKV, join
from cachegen_cli.profilefiles import loaded_again
from cachegen_cli.profiles import Profile, Unit
from cachegen_cli.results.settings import Settings
from cachegen_cli.schemes import SCHEMES


def profile_of(settings: Settings) -> Profile | None:
    """The profile that the settings name, opened."""
    return loaded_again(settings.profile) if settings.profile else None


def units(
    layers: Iterable[LayerKV], settings: Settings, fingerprint: str = ""
) -> Iterator[LayerKV]:
    """Entries as they are coded; where a basis goes across layers, they are joined, but those
    that are quantized already.

    Args:
        fingerprint: of the model that made them, where that is known.

    Raises:
        InputError: entries that the profile does not fit, or of unequal length.
    """
    profile = profile_of(settings)
    if profile is not None and fingerprint:
        profile.check(fingerprint)
    if profile is None or SCHEMES[settings.scheme].profile_use != "must":
        yield from layers
        return
    basis = str(settings.options.get("basis", "model"))
    waiting: dict[Unit, list[LayerKV]] = {}
    for kv in layers:
        if kv.stored:
            yield kv
            continue
        unit = profile.unit(basis, kv)
        members = waiting.setdefault(unit, [])
        members.append(kv)
        if len({(m.keys.shape[1], m.tokens_seen) for m in members}) > 1:
            raise InputError(
                f"cache entries {members[0].layer} and {kv.layer} hold unequal numbers of tokens",
                "transform:basis=layer takes them one by one",
            )
        if len(members) == len(unit.layers):
            del waiting[unit]
            yield join(members) if len(members) > 1 else kv
    for unit in waiting:
        raise InputError(
            f"of layers {list(unit.layers)}, which share a basis, some are not here",
            "transform:basis=layer takes them one by one",
        )
