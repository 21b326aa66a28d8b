"""Which code width each layer's keys and values get."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.profilefiles import load_profile
from cachegen_cli.quantize import check_bits, layer_group_bits
from cachegen_cli.results.planning import Plan
from cachegen_cli.results.settings import GROUPS, PlannedWidths, Settings
from cachegen_cli.schemes import Place, parse, scheme_at, scheme_named, takes
from cachegen_cli.units import profile_of
from cachegen_cli.wording import counted

SCHEDULES = ("uniform", "depth")
DELTAS = ("auto", "on", "off")


def settings_of(
    scheme: str = "group",
    *,
    bits: int | None = None,
    key_bits: int | None = None,
    value_bits: int | None = None,
    schedule: str | Path | Plan = "uniform",
    profile: Path | str | None = None,
    **rest: Any,
) -> Settings:
    """Return the settings that arguments of `analyze` and options of the commands make.

    Args:
        scheme: NAME or NAME:key=value,...
        bits, key_bits, value_bits, schedule, profile: as in `analyze`.
        rest: further fields of `Settings`.

    Raises:
        InputError: a plan or a profile that is none.
        UsageError: a scheme or schedule that there is not, or a width that nothing would take.
    """
    given = [width for width in (bits, key_bits, value_bits) if width is not None]
    if given and schedule not in SCHEDULES:
        raise UsageError("a plan decides all widths", "leave out --bits, --key-bits, ...")
    if len(given) == 3:
        raise UsageError("--bits has no use beside --key-bits and --value-bits", "leave it out")
    name, options = parse(scheme)
    settings: dict[str, Any] = {
        "key_bits": bits if key_bits is None else key_bits,
        "value_bits": bits if value_bits is None else value_bits,
        "profile": load_profile(profile).info if profile else None,
    }
    return settings_with(schedule, Settings(scheme=name, options=options, **settings, **rest))


def settings_with(schedule: str | Path | Plan, settings: Settings) -> Settings:
    """The settings under a schedule by name, or under a plan or the file of one.

    Raises:
        InputError: the file is not a plan.
        UsageError: a schedule that is neither known nor a file.
    """
    if schedule in SCHEDULES:
        return replace(settings, schedule=str(schedule), plan=None)
    plan = schedule.widths("") if isinstance(schedule, Plan) else _read(Path(schedule))
    return replace(
        settings,
        schedule="plan",
        plan=plan,
        key_bits=max(plan.key_bits),
        value_bits=max(plan.value_bits),
    )


def widths(settings: Settings, n_layers: int) -> tuple[list[int], list[int]]:
    """Code widths of each layer's keys and of its values under the settings' schedule.

    Raises:
        InputError: a plan of another number of layers.
    """
    if settings.plan is not None:
        plan = settings.plan
        if len(plan.key_bits) != n_layers:
            raise InputError(
                f"the plan '{plan.source}' is for "
                f"{counted(len(plan.key_bits), 'cache entry')} of "
                f"{plan.model}, and there are {n_layers} here",
                "make one for this model with 'cachegen plan'",
            )
        return list(plan.key_bits), list(plan.value_bits)
    if settings.schedule == "depth":
        keys, values = (
            layer_group_bits(n_layers, bits) for bits in (settings.key_bits, settings.value_bits)
        )
        return keys, values
    return [settings.key_bits] * n_layers, [settings.value_bits] * n_layers


def check(settings: Settings, shipped: bool = True) -> None:
    """Refuse settings that cannot be measured, or of which a part would have no effect.

    Args:
        shipped: whether the result tells what the layout takes that LMCache ships.

    Raises:
        UsageError: there is such a part.
    """
    name, options, plan = settings.scheme, settings.options, settings.plan
    scheme = scheme_named(name)
    bits = {*plan.key_bits, *plan.value_bits} if plan else {settings.key_bits, settings.value_bits}
    if scheme.has_bits:
        for width in bits:
            check_bits(width)
    elif settings.schedule != "uniform" or plan:
        raise UsageError(f"scheme {name} has no code widths to schedule", "leave out --schedule")
    elif bits != {0}:
        raise UsageError(
            f"scheme {name} has no code width", f"leave out --bits, ...; {takes(name)}"
        )
    asked = options.get("group_size", settings.group_size)
    if asked != settings.group_size:
        raise UsageError(
            f"groups of {settings.group_size} and of {asked} are asked for",
            f"give --group-size or {name}:group_size, not both",
        )
    if settings.group_size and name not in GROUPS:
        raise UsageError(f"scheme {name} has no groups", f"leave out --group-size; {takes(name)}")
    if settings.profile and scheme.profile_use == "none":
        raise UsageError(f"scheme {name} uses no profile", "leave out --profile")
    if settings.delta == "on" and scheme.any_size:
        raise UsageError(f"scheme {name} codes no token deltas", "leave out --delta on")
    if not shipped and "chunk" in options:
        raise UsageError(
            "chunks size the layout that LMCache ships alone, which is not told here",
            f"leave out {name}:chunk; 'cachegen analyze --json' tells it",
        )
    for width in bits:
        at = Place("keys", 0, 1, width, "float16", profile=profile_of(settings))
        scheme_at(settings, at)  # refuses its options
    for kept in (settings.keep_first, settings.keep_last):
        if kept < 0:
            raise UsageError(f"{kept} tokens cannot be kept", "0 or more tokens stay in 16 bits")
    schedules = (*SCHEDULES, "plan") if settings.plan else SCHEDULES
    for name, value, choices in (
        ("schedule", settings.schedule, schedules),
        ("delta", settings.delta, DELTAS),
    ):
        if value not in choices:
            raise UsageError(f"'{value}' is not a {name}", f"choose from {', '.join(choices)}")


def _read(path: Path) -> PlannedWidths:
    """The widths of a plan's file: its lists ``key_bits`` and ``value_bits``, edited or not."""
    if not path.is_file():
        raise UsageError(
            f"'{path}' is neither a schedule nor a plan's file",
            f"choose from {', '.join(SCHEDULES)}, or write one with 'cachegen plan -o plan.json'",
        )
    try:
        plan = PlannedWidths.of_plan(str(path), json.loads(path.read_text(encoding="utf-8")))
        for bits in (*plan.key_bits, *plan.value_bits):
            check_bits(bits)
    except UsageError as error:
        raise _not_a_plan(path, error.message) from error
    except OSError as error:
        raise _not_a_plan(path, error.strerror or "it cannot be read") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _not_a_plan(path, "it has no lists 'key_bits' and 'value_bits' of a width a "
                                "layer") from error  # fmt: skip
    return plan


def _not_a_plan(path: Path, reason: str) -> InputError:
    return InputError(
        f"'{path}' is not a plan: {reason}", "write one with 'cachegen plan -o plan.json'"
    )
