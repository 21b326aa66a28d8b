"""The schemes by name, and from what a user types or a file's header holds."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from math import isfinite
from typing import Any

from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.profiles import BASES, Profile
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.spans import Entry
from cachegen_cli.schemes.affine import Affine
from cachegen_cli.schemes.base import Coded, Place, Scheme, code_shape, expected_of
from cachegen_cli.schemes.cachegen import CacheGen
from cachegen_cli.schemes.exact import Exact
from cachegen_cli.schemes.group import Group
from cachegen_cli.schemes.transform import Transform
from cachegen_cli.schemes.uniform import Uniform

__all__ = [
    "SCHEMES",
    "Coded",
    "Place",
    "Scheme",
    "code_shape",
    "expected_of",
    "from_header",
    "parse",
    "scheme_at",
    "scheme_named",
    "takes",
    "to_header",
]

SCHEMES: dict[str, Any] = {
    scheme.name: scheme for scheme in (Group, Affine, CacheGen, Uniform, Transform, Exact)
}
# what may follow NAME: as key=value; other fields of a scheme follow from where a tensor stands
_OPTIONS: dict[str, tuple[str, ...]] = {
    "group": ("group_size",),
    "mlx": ("group_size",),
    "cachegen": ("bins", "chunk"),
    "uniform": ("error", "step", "bits", "kl"),
    "transform": ("error", "step", "bits", "kl", "basis"),
    "exact": (),
}
_STEPS = {"error", "step", "bits", "kl"}  # of which one decides the step
_WORDS = ("basis",)  # options that are no numbers
_INTEGERS = ("group_size", "bins", "chunk")


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """(name, options) of NAME or NAME:key=value,key=value.

    Raises:
        UsageError: a scheme or option that does not exist, or a value that is no number.
    """
    name, _, rest = text.partition(":")
    scheme_named(name)
    options: dict[str, Any] = {}
    for part in rest.split(",") if rest else []:
        key, _, value = part.partition("=")
        if key not in _OPTIONS[name]:
            raise UsageError(f"scheme {name} has no option '{key}'", takes(name))
        if key in options:
            raise UsageError(f"'{key}' is given twice", "give it once")
        try:
            options[key] = value if key in _WORDS else _number(key, value)
        except ValueError:
            raise UsageError(f"'{part}' is not a number", f"write {name}:{key}=N") from None
        if key not in _WORDS and not isfinite(float(options[key])):
            raise UsageError(f"'{part}' is not a number", f"write {name}:{key}=N")
    if len(_STEPS & set(options)) > 1:
        raise UsageError(f"{name} has one of error, step, bits and kl", "give one")
    return name, options


def scheme_named(name: str) -> Any:
    """Return the scheme of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in SCHEMES:
        raise UsageError(f"'{name}' is not a scheme", f"choose from {', '.join(SCHEMES)}")
    return SCHEMES[name]


def scheme_at(settings: Settings, place: Place) -> Scheme:
    """The scheme of a tensor under the settings.

    Raises:
        UsageError: options that make no sense.
    """
    found: Scheme = SCHEMES[settings.scheme].at(place, settings.options, settings.group_size)
    return found


def to_header(scheme: Scheme) -> dict[str, Any]:
    """What a file's header says of a scheme; what a profile holds is not in it."""
    return {"name": scheme.name} | {f.name: getattr(scheme, f.name) for f in _plain(type(scheme))}


def from_header(
    data: dict[str, Any], profile: Profile | None, tensor: str, entries: tuple[Entry, ...]
) -> Scheme:
    """The inverse of `to_header`.

    Args:
        profile: if it is given; it has to be the one that was used.
        tensor, entries: as in `Place`.

    Raises:
        InputError: no such scheme, or not its fields, or another profile.
    """
    try:
        kind = SCHEMES[data["name"]]
        known = {f.name: f.default for f in _plain(kind) if f.default is not MISSING}
        values = {f.name: (known | data)[f.name] for f in _plain(kind)}
        for f in _plain(kind):
            if type(values[f.name]).__name__ != str(f.type).partition("[")[0]:
                raise TypeError(f.name)
            if f.type == "int" and values[f.name] < 1:
                raise ValueError(f.name)
            if f.type == "float" and not 0 <= values[f.name] < 1e30:
                raise ValueError(f.name)
        scheme: Scheme = kind(**values)
        if not all(0 <= bits <= 8 for bits in scheme.plane_bits):
            raise ValueError("bits")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"its scheme cannot be read: {error}", "update cachegen, or get the file again"
        ) from error
    if getattr(scheme, "basis", BASES[0]) not in BASES:
        raise InputError("its scheme names no basis", "update cachegen, or get the file again")
    used = getattr(scheme, "profile", "")
    if not used:
        return scheme
    if profile is None:
        raise InputError("it needs the profile that it was packed with", "give --profile FILE")
    if profile.info.sha256 != used:
        raise InputError(
            f"it was packed with another profile than '{profile.info.file}', one of SHA-256 {used}",
            "give that one as --profile FILE",
        )
    return scheme.bound(profile, tensor, entries)  # type: ignore[attr-defined]


def _plain(kind: Any) -> list[Field[Any]]:
    """The fields of a scheme that a header holds."""
    return [f for f in fields(kind) if f.compare]


def _number(key: str, value: str) -> float | int:
    return int(value) if key in _INTEGERS else float(value)


def takes(name: str) -> str:
    """Say for a hint which options a scheme takes."""
    names = _OPTIONS[name]
    shown = (f"{key}={'layer|model' if key in _WORDS else 'N'}" for key in names)
    return f"it takes {', '.join(shown)}" if names else "it takes none"
