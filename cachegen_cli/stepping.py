"""The error of `uniform` or `transform` at which a target size or a target KL is met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log, sqrt

from cachegen_cli.errors import InputError
from cachegen_cli.results.settings import Settings
from cachegen_cli.schemes import SCHEMES

TARGETS = ("bits", "kl")
_TRIALS = 10
_NEAR = 0.02  # of the target's logarithm, which is close enough
_BELOW = 0.98  # of a KL, that is aimed at so that it holds


def is_open(settings: Settings) -> bool:
    """Whether the settings name a target whose error has to be found."""
    return "error" not in settings.options and any(t in settings.options for t in TARGETS)


def by_bits(settings: Settings, bits_at: Callable[[Settings], float]) -> Settings:
    """Settings whose coded bits an element are the target's, within 2 %.

    Args:
        bits_at: measures settings with an error.

    Raises:
        InputError: no error gives so many bits.
    """
    target = settings.options["bits"]
    _, error, _ = SCHEMES[settings.scheme].errors
    for _ in range(_TRIALS):
        tried = _with(settings, error)
        found = bits_at(tried)
        if abs(log(found / target)) < _NEAR:
            return tried
        # a bit is a factor of two in the error, at few bits of more
        wanted = _clamped(settings, error * 2.0 ** (found - target))
        if wanted == error:
            break
        error = wanted
    raise InputError(
        f"no step of {settings.scheme} gives {target:g} bits an element: an error of {error:g} "
        f"takes {found:.2f}",
        f"take another target, or give {settings.scheme}:error=N",
    )


def by_kl(settings: Settings, kl_at: Callable[[Settings], float]) -> Settings:
    """Settings whose KL is at most the target's and not much less.

    Raises:
        InputError: no error gives so small a KL.
    """
    target = settings.options["kl"]
    best = 0.0
    _, error, _ = SCHEMES[settings.scheme].errors
    for _ in range(_TRIALS):
        found = kl_at(_with(settings, error))
        if found <= target:
            best = max(best, error)
            if found > (1 - 4 * _NEAR) * target:
                break
        # KL grows with the square of the error
        wanted = _clamped(settings, error * sqrt(_BELOW * target / max(found, 1e-12)))
        if wanted == error:
            break
        error = wanted
    if not best:
        lossy = SCHEMES[settings.scheme].profile_use == "must"
        raise InputError(
            f"no step of {settings.scheme} holds a KL of {target:g}: an error of {error:g} gives "
            f"{found:.3g}",
            "raise the target"
            + (", or calibrate with more --components: what lies beyond them is lost" * lossy),
        )
    return _with(settings, best)


def _with(settings: Settings, error: float) -> Settings:
    return replace(settings, options=settings.options | {"error": error})


def _clamped(settings: Settings, error: float) -> float:
    least, _, most = SCHEMES[settings.scheme].errors
    return float(min(max(float(f"{error:.6g}"), least), most))
