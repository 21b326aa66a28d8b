"""The schemes by name, and from what a user types or a file's header holds."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.results import Settings
from cachegen_cli.schemes.affine import Affine
from cachegen_cli.schemes.base import Coded, Place, Scheme
from cachegen_cli.schemes.cachegen import CacheGen
from cachegen_cli.schemes.exact import Exact
from cachegen_cli.schemes.group import Group
from cachegen_cli.schemes.uniform import Uniform

__all__ = [
    "SCHEMES",
    "UNDO_ROPE",
    "Coded",
    "Place",
    "Scheme",
    "from_header",
    "parse",
    "scheme_at",
    "to_header",
]

SCHEMES: dict[str, Any] = {
    scheme.name: scheme for scheme in (Group, Affine, CacheGen, Uniform, Exact)
}
# what may follow NAME: as key=value; other fields of a scheme follow from where a tensor stands
_OPTIONS: dict[str, tuple[str, ...]] = {
    "group": ("group_size",),
    "mlx": ("group_size",),
    "cachegen": ("bins", "chunk"),
    "uniform": ("error", "step", "bits", "kl"),
    "exact": (),
}


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """(name, options) of NAME or NAME:key=value,key=value.

    Raises:
        UsageError: a scheme or option that does not exist, or a value that is no number.
    """
    name, _, rest = text.partition(":")
    if name not in SCHEMES:
        raise UsageError(f"'{name}' is not a scheme", f"choose from {', '.join(SCHEMES)}")
    options = {}
    for part in rest.split(",") if rest else []:
        key, _, value = part.partition("=")
        if key not in _OPTIONS[name]:
            raise UsageError(f"scheme {name} has no option '{key}'", _options_hint(name))
        try:
            options[key] = float(value) if name == "uniform" else int(value)
        except ValueError:
            raise UsageError(f"'{part}' is not a number", f"write {name}:{key}=N") from None
    return name, options


def scheme_at(settings: Settings, place: Place) -> Scheme:
    """The scheme of a tensor under the settings.

    Raises:
        UsageError: options that make no sense.
    """
    found: Scheme = SCHEMES[settings.scheme].at(place, settings.options, settings.group_size)
    return found


def to_header(scheme: Scheme) -> dict[str, Any]:
    """What a file's header says of a scheme."""
    return {"name": scheme.name} | asdict(scheme)  # type: ignore[call-overload]


def from_header(data: dict[str, Any]) -> Scheme:
    """The inverse of `to_header`.

    Raises:
        InputError: no such scheme, or not its fields.
    """
    try:
        kind = SCHEMES[data["name"]]
        values = {f.name: data[f.name] for f in fields(kind)}
        for f in fields(kind):
            if type(values[f.name]).__name__ != str(f.type).partition("[")[0]:
                raise TypeError(f.name)
            if f.type == "int" and values[f.name] < 1:
                raise ValueError(f.name)
        scheme: Scheme = kind(**values)
        if not all(0 <= bits <= 8 for bits in scheme.plane_bits):
            raise ValueError("bits")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"its scheme cannot be read: {error}", "update cachegen, or get the file again"
        ) from error
    return scheme


def _options_hint(name: str) -> str:
    names = _OPTIONS[name]
    return f"it takes {', '.join(f'{key}=N' for key in names)}" if names else "it takes none"
