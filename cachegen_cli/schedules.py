"""Which code width each layer's keys and values get."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.quantize import check_bits, check_group_size, layer_group_bits
from cachegen_cli.results.planning import Plan
from cachegen_cli.results.settings import PlannedWidths, Settings
from cachegen_cli.schemes import SCHEMES, Place, scheme_at
from cachegen_cli.units import profile_of

SCHEDULES = ("uniform", "depth")
DELTAS = ("auto", "on", "off")


def settings_with(schedule: str | Path | Plan, settings: Settings) -> Settings:
    """The settings under a schedule by name, or under a plan or the file of one.

    Raises:
        InputError: the file is not a plan.
        UsageError: a schedule that is neither known nor a file.
    """
    if not SCHEMES[settings.scheme].has_bits:
        if schedule != "uniform":
            raise UsageError(
                f"scheme {settings.scheme} has no code widths to schedule", "leave out --schedule"
            )
        return replace(settings, key_bits=0, value_bits=0)
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
                f"the plan '{plan.source}' is for {len(plan.key_bits)} cache entries of "
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


def check(settings: Settings) -> None:
    """Raise UsageError unless the settings can be measured."""
    if SCHEMES[settings.scheme].has_bits:
        check_bits(settings.key_bits)
        check_bits(settings.value_bits)
    check_group_size(settings.group_size)
    if settings.profile and SCHEMES[settings.scheme].profile_use == "none":
        raise UsageError(f"scheme {settings.scheme} uses no profile", "leave out --profile")
    for bits in (settings.key_bits, settings.value_bits):
        at = Place("keys", 0, 1, bits, "float16", profile=profile_of(settings))
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
