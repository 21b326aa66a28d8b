"""What a result warns of."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from cachegen_cli.captures import Capture
from cachegen_cli.errors import InputError
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.run import Notice
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.spans import Entry
from cachegen_cli.schemes import SCHEMES

TOKENS_PER_SYMBOL = 16  # fewer, and free tables flatter by more than 0.05 bits an element


def notices_of(
    source: Capture, grid: Sequence[Settings], measured: Sequence[Measurement]
) -> tuple[Notice, ...]:
    """All warnings of a text's capture measured under some settings."""
    if source.stored and source.stored.everywhere:
        grid = [settings.over(source.stored) for settings in grid]
    return (
        *source.notices,
        *_stored_notices(source),
        *_plan_notices(source.model.id, grid),
        *_rotation_notices(source, grid),
        *_profile_notices(source, grid),
        *_short_prompt_notice(source.layers, grid, measured),
        *_tables_notice(source.prompt.tokens, measured),
    )


def check_applies(source: Capture, what: str) -> None:
    """Refuse what is asked of settings that apply to no entry.

    Args:
        what: the command or option that asks.

    Raises:
        InputError: every entry is quantized already.
    """
    stored = source.stored
    if stored and stored.everywhere:
        raise InputError(
            f"{what} has nothing to work on: all {stored.of} cache entries are quantized already "
            f"({stored.codes}) and keep their own codes",
            "'cachegen analyze' shows what these take; settings apply to a cache in 16 bits",
        )


def _stored_notices(source: Capture) -> list[Notice]:
    """Say how many entries settings do not apply to, and what KL is then against."""
    stored = source.stored
    if stored is None:
        return []
    return [
        Notice(
            "already-quantized",
            f"{stored.entries} of {stored.of} cache entries are quantized already "
            f"({stored.codes}) and keep their own codes: settings apply to "
            f"{stored.of - stored.entries} of {stored.of} entries, and KL is against the cache as "
            "it is, since what it was before is not there",
        )
    ]


def _plan_notices(model: str, grid: Sequence[Settings]) -> list[Notice]:
    """Say that a plan was made for another model or with other settings."""
    found = {}
    for one in grid:
        plan = one.plan
        if plan is None:
            continue
        if plan.model and plan.model != model:
            found["plan-for-another-model"] = f"the plan was made for {plan.model}, not for {model}"
        now = (one.group_size, one.keep_first, one.keep_last)
        then = (plan.group_size, plan.keep_first, plan.keep_last)
        if any(a not in (None, b) for a, b in zip(then, now, strict=True)):
            found["plan-for-other-settings"] = (
                f"the plan was made with groups of {then[0]}, {then[1]} first and {then[2]} last "
                f"tokens kept; here it is {now[0]}, {now[1]} and {now[2]}"
            )
    return [Notice(code, message) for code, message in found.items()]


def _rotation_notices(source: Capture, grid: Sequence[Settings]) -> list[Notice]:
    """Say whose keys stay rotated although a scheme would rather have them without."""
    # a profile knows the rotation itself
    undoing = [name for name, scheme in SCHEMES.items() if scheme.undoes_rope]
    if not any(one.scheme in undoing and not one.profile for one in grid):
        return []
    reasons: dict[str, list[Entry]] = {}
    for kv in (kv for kv in source.layers if not kv.stored):
        if isinstance(reason := source.rotaries[kv.layer], str):
            reasons.setdefault(reason, []).append(kv.layer)
    return [
        Notice(
            "rotation-stays",
            f"keys of {len(layers)} of {len(source.layers)} cache entries keep their rotary "
            f"position: {reason}",
        )
        for reason, layers in reasons.items()
    ]


def _profile_notices(source: Capture, grid: Sequence[Settings]) -> list[Notice]:
    """Say that nothing but shapes told whether a profile is of the model of a file's cache."""
    used = [one.profile for one in grid if one.profile]
    if not used or source.fingerprint:
        return []
    return [
        Notice(
            "profile-model-not-checked",
            f"the cache names its model {source.model.id}, the profile is of {used[0].model}: "
            "without the model only shapes are compared",
        )
    ]


def _short_prompt_notice(
    layers: Sequence[LayerKV], grid: Sequence[Settings], measured: Sequence[Measurement]
) -> list[Notice]:
    """Say by how much the plug-in entropy is too low where few tokens meet many symbols.

    Its bias is (symbols - 1) / (2 ln 2 n) bits for a distribution of n (Miller and Madow, 1955).
    """
    tokens = min(kv.keys.shape[1] for kv in layers)
    worst, widest = 0.0, 0
    for place, settings in enumerate(grid):
        bits = max(settings.key_bits, settings.value_bits)
        if measured:  # the scheme decides, or what is stored
            bits = min(8, max(tensor.bits for tensor in measured[place].tensors))
        widest = max(widest, bits)
        symbols = 2 ** (bits + 1) - 1 if settings.delta == "on" else 2**bits
        n = tokens * (min(kv.keys.shape[2] for kv in layers) if settings.pooled else 1)
        if n < TOKENS_PER_SYMBOL * symbols:
            worst = max(worst, min((symbols - 1) / (2 * log(2) * n), bits))
    if not worst:
        return []
    return [
        Notice(
            "short-prompt",
            f"{tokens} tokens are few for {widest} bits: with free probability tables the entropy "
            f"is too low by up to {worst:.2f} bits an element, so its saving flatters",
        )
    ]


def _tables_notice(tokens: int, measured: Sequence[Measurement]) -> list[Notice]:
    """Say where most tensors are packed plainly only because the prompt is short."""
    notices = []
    for one in measured:
        waiting = sorted(t.tokens_to_pay for t in one.tensors if t.tokens_to_pay is not None)
        if 2 * len(waiting) > len(one.tensors):
            notices.append(
                Notice(
                    "tables-do-not-pay",
                    f"{tokens} tokens are too few for probability tables ({one.settings.label}): "
                    f"{len(waiting)} of {len(one.tensors)} tensors are "
                    f"packed plainly; from about {waiting[len(waiting) // 2]} tokens on tables "
                    "would pay (an estimate)",
                )
            )
    return notices
