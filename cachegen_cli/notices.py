"""What a result warns of."""

from __future__ import annotations

from collections.abc import Sequence

from cachegen_cli.bootstrap import FEWEST
from cachegen_cli.captures import Capture
from cachegen_cli.coding.choosing import FEW_TOKENS
from cachegen_cli.errors import InputError
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.quality import LARGEST, Quality
from cachegen_cli.results.run import Notice
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.sizes import TensorResult
from cachegen_cli.results.spans import Entry
from cachegen_cli.schemes import SCHEMES
from cachegen_cli.wording import counted

_DECIDE = 0.3  # share of the largest positions in the KL
_MORE = 1.05  # times an error, beyond which it is larger
_FLATTERS = 0.05  # bits an element of free tables, which are told


def notices_of(
    source: Capture, grid: Sequence[Settings], measured: Sequence[Measurement]
) -> tuple[Notice, ...]:
    """All warnings of a text's capture measured under some settings."""
    if source.stored and source.stored.everywhere:
        grid = [settings.over(source.stored) for settings in grid]
    return (
        *source.notices,
        *_stored_notices(source, any(one.quality for one in measured)),
        *_plan_notices(source, grid),
        *_rotation_notices(source, grid),
        *_profile_notices(source, grid),
        *_short_prompt_notice(measured),
        *_tables_notice(measured),
    )


def quality_notices(measured: Sequence[tuple[str, Quality]]) -> list[Notice]:
    """Say where a few positions decide a mean KL: settings by name, the worst is told."""
    few = min((quality.positions for _, quality in measured), default=FEWEST)
    if few < FEWEST:
        message = f"{counted(few, 'position')} of a continuation tell nothing of an error"
        return [Notice("few-positions", message)]
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


def width_notices(rows: Sequence[Measurement]) -> list[Notice]:
    """Say where more bits lose more: a quantizer whose scales do not hold such numbers."""
    errors = [
        (row.settings.key_bits, row.totals.relative_rms_error, row.settings.label)
        for row in rows
        if row.settings.key_bits == row.settings.value_bits > 0 and row.settings.plan is None
    ]
    for bits, error, label in errors:
        for fewer, less, other in errors:
            if fewer < bits and error and less is not None and error > _MORE * less:
                message = (
                    f"{label} have a larger error ({error:.3g}) than {other} ({less:.3g}): the "
                    "scales of this scheme do not hold numbers as they are here"
                )
                return [Notice("more-bits-lose-more", message)]
    return []


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
            f"{what} has nothing to work on: all {counted(stored.of, 'cache entry')} are "
            f"quantized already ({stored.codes}) and keep their own codes",
            "'cachegen analyze' shows what these take; settings apply to a cache in 16 bits",
        )


def _stored_notices(source: Capture, quality: bool) -> list[Notice]:
    """Say how many entries settings do not apply to, and what KL is then against."""
    stored = source.stored
    if stored is None:
        return []
    return [
        Notice(
            "already-quantized",
            f"{stored.entries} of {counted(stored.of, 'cache entry')} are quantized already "
            f"({stored.codes}) and keep their own codes: settings apply to "
            f"{stored.of - stored.entries} of {counted(stored.of, 'entry')}; what they were before "
            f"is not there{', so KL is against the cache as it is' if quality else ''}",
        )
    ]


def _plan_notices(source: Capture, grid: Sequence[Settings]) -> list[Notice]:
    """Say that a plan was made for another model, or perhaps, or with other settings."""
    found = {}
    for one in grid:
        plan = one.plan
        if plan is None:
            continue
        same = source.is_of(plan.model) if plan.model else True
        made = f"the plan was made for {plan.model}"
        if same is None:
            found["plan-model-not-checked"] = (
                f"{made}; whether that is {source.model.id} cannot be checked here"
            )
        elif not same:
            found["plan-for-another-model"] = f"{made}, not for {source.model.id}"
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
            f"keys of {len(layers)} of {counted(len(source.layers), 'cache entry')} keep their "
            f"rotary position: {reason}",
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
                if source.loaded is not None or "model" in source.metadata
                else "the cache does not name its model"
            )
            + f", the profile is of {used[0].model}: without the model only shapes are compared",
        )
    ]


def _short_prompt_notice(measured: Sequence[Measurement]) -> list[Notice]:
    """Say by how much the plug-in entropy is too low where few tokens meet many symbols."""
    biases = [
        (_bias(tensor), tensor.bits, row.tokens, one.totals.entropy_saving)
        for one in measured
        for row in one.layers
        for tensor in (row.keys, row.values)
    ]
    worst, bits, tokens, saving = max(biases, default=(0.0, 0, 0, None), key=lambda part: part[0])
    if worst <= _FLATTERS:
        return []
    follows = (
        "as much as it seems to save, so its saving is not shown"
        if saving is None
        else "so its saving flatters, and is not shown where it is no more than that"
    )
    return [
        Notice(
            "short-prompt",
            f"with {counted(tokens, 'token')} for codes of {counted(bits, 'bit')} the entropy, "
            f"whose probability tables are free, is too low by up to {worst:.2f} bits an element, "
            f"{follows}",
        )
    ]


def _bias(tensor: TensorResult) -> float:
    """Return by how many bits an element that is coded the entropy may be too low."""
    coded = tensor.elements - tensor.kept_bytes // 2
    return (tensor.entropy_bias_bits or 0.0) / coded if coded else 0.0


def _tables_notice(measured: Sequence[Measurement]) -> list[Notice]:
    """Say where most tensors are packed plainly only because the prompt is short."""
    notices = []
    for one in measured:
        growing = [row for row in one.layers if row.tokens == row.tokens_seen]
        plain = [t for row in growing for t in (row.keys, row.values) if t.symbol_model == "plain"]
        waiting = sorted(t.tokens_to_pay for t in plain if t.tokens_to_pay is not None)
        tensors = sum(tensor.elements > 0 for tensor in one.tensors)
        tokens = max((row.tokens for row in growing), default=0)
        if 2 * len(waiting) > tensors:
            packed = len(waiting)
            rest = f"from about {waiting[packed // 2]:,} tokens on they would, within a factor of 2"
        elif 2 * len(plain) > tensors and tokens < FEW_TOKENS:
            packed, rest = len(plain), "so few do not tell from how many on they would"
        else:
            continue
        notices.append(
            Notice(
                "tables-do-not-pay",
                f"with {counted(tokens, 'token')} probability tables do not pay "
                f"({one.settings.label}): {packed} of {counted(tensors, 'tensor')} are packed "
                f"plainly; {rest}",
            )
        )
    return notices
