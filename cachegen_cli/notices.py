"""What a result warns of."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from cachegen_cli.captures import Capture
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.quality import LARGEST, Quality
from cachegen_cli.results.run import Notice
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.spans import Entry
from cachegen_cli.schemes import SCHEMES

_DECIDE = 0.3  # share of the largest positions in the KL
TOKENS_PER_SYMBOL = 16  # fewer, and free tables flatter by more than 0.05 bits an element


def notices_of(
    source: Capture, grid: Sequence[Settings], measured: Sequence[Measurement]
) -> tuple[Notice, ...]:
    """All warnings of a text's capture measured under some settings."""
    return (
        *source.notices,
        *_plan_notices(source, grid),
        *_rotation_notices(source, grid),
        *_profile_notices(source, grid),
        *_short_prompt_notice(source.layers, grid, measured),
        *_tables_notice(source.prompt.tokens, measured),
    )


def quality_notices(measured: Sequence[tuple[str, Quality]]) -> list[Notice]:
    """Say where a few positions decide a mean KL: settings by name, the worst is told."""
    known = [(quality.kl_share_of_largest or 0.0, name, quality) for name, quality in measured]
    deciding = [part for part in known if part[0] >= _DECIDE and part[2].positions > 2 * LARGEST]
    if not deciding:
        return []
    share, name, quality = max(deciding, key=lambda part: part[0])
    return [
        Notice(
            "few-positions-decide",
            f"the {LARGEST} largest of {quality.positions} positions hold {share:.0%} of the KL of "
            f"{name}: its median is {quality.kl_nats_median:.3g}, its mean {quality.kl_nats:.3g}",
        )
    ]


def _knows_model(source: Capture) -> bool:
    """Return whether it is known which model made the cache."""
    return source.loaded is not None or "model" in source.metadata


def _plan_notices(source: Capture, grid: Sequence[Settings]) -> list[Notice]:
    """Say that a plan was made for another model or with other settings."""
    model, found = source.model.id, {}
    for one in grid:
        plan = one.plan
        if plan is None:
            continue
        if plan.model and plan.model != model and _knows_model(source):
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
    if not any(SCHEMES[one.scheme].undoes_rope and not one.profile for one in grid):
        return []
    reasons: dict[str, list[Entry]] = {}
    for kv in source.layers:
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
            (
                f"the cache names its model {source.model.id}"
                if _knows_model(source)
                else "the cache does not name its model"
            )
            + f", the profile is of {used[0].model}: without the model only shapes are compared",
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
        if not bits and measured:  # the scheme decides
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
