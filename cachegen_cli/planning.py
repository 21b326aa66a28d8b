"""Bits for each layer's keys and values, so that a target holds at the least cost.

The plan is predicted from measurements: the KL of every tensor compressed alone at one width,
scaled to other widths by the tensor's own error energy, and by the measured KL of all tensors
at that width. Then the plan itself is measured, and corrected until the target holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log
from typing import Any

from cachegen_cli.allocation import Allocation, Option, allocations, filled, predictions
from cachegen_cli.analysis import Source, captured
from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.measuring import Measured, positions_over
from cachegen_cli.notices import quality_notices
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.quality import kl_ratio
from cachegen_cli.quantize import MAX_BITS
from cachegen_cli.results.candidates import SAME_BYTES, Candidate, Target, best_within
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.planning import Plan, Rival, TensorSensitivity
from cachegen_cli.results.quality import LEAST_KL
from cachegen_cli.results.run import Notice
from cachegen_cli.results.settings import PlannedWidths, Settings
from cachegen_cli.schedules import check, settings_with, widths
from cachegen_cli.schemes import SCHEMES
from cachegen_cli.targets import one_target
from cachegen_cli.texts import Texts
from cachegen_cli.trials import Trials
from cachegen_cli.wording import counted

Widths = tuple[int, ...]

CHOICES = (2, 3, 4, 5, 6, 8)
_CLOSE = 0.95  # a KL this near below its target is good enough


def plan(
    source: Source = None,
    prompt: Texts = None,
    *,
    target_kl: float | None = None,
    target_bytes: int | None = None,
    target_bits: float | None = None,
    choices: Sequence[int] = CHOICES,
    settings: Settings | None = None,
    continuation: int | None = None,
    progress: Progress = no_progress,
    **capture_options: Any,
) -> Plan:
    """Pick a code width for each layer's keys and values.

    Reads the continuation at most 2 x layers + 2 x choices times: with every width for all
    tensors, with each tensor alone at one width, and with the plans that it measures.

    Args:
        source, prompt, continuation, capture_options: as in `analyze`.
        target_kl: fewest coded bytes at a KL of at most so many nats, or
        target_bytes: lowest KL in at most so many coded bytes over all texts, or
        target_bits: lowest KL in at most so many coded bits an element. Give one of the three.
        choices: the widths to choose from.
        settings: all but the widths; groups of 32 by default.
        progress: called with (stage, done, of).

    Raises:
        InputError: no plan reaches the target.
        UsageError: impossible arguments.
        CachegenError: as in `analyze`.
    """
    target = one_target(target_kl, target_bytes, target_bits)
    choices = tuple(sorted(set(choices)))
    if not choices:
        raise UsageError("there are no widths to choose from", "give one or more of 1 to 8")
    settings = settings_with("uniform", settings or Settings())
    if not settings.key_bits:
        raise UsageError(
            f"scheme {settings.scheme} has no code widths to plan",
            f"take {' or '.join(name for name, one in SCHEMES.items() if one.has_bits)}",
        )
    for bits in choices:
        check(replace(settings, key_bits=bits, value_bits=bits))
    texts = captured(source, prompt, progress, capture_options, continuation)
    return _Search(Trials(texts, "plan", progress), target, choices, settings).plan()


class _Search:
    """One search for a plan. Widths are tuples in the order of `Measurement.tensors`."""

    def __init__(
        self, trials: Trials, target: Target, choices: tuple[int, ...], settings: Settings
    ) -> None:
        self.trials, self.target, self.choices, self.base = trials, target, choices, settings
        self.n_tensors = 2 * trials.n_layers
        self.kept = (settings.group_size, settings.keep_first, settings.keep_last)
        self.by_text: dict[Widths, list[Measured]] = {}
        self.found: dict[Widths, Measurement] = {}
        self.options: list[dict[int, Option]] = []

    def plan(self) -> Plan:
        """Measure uniform widths and sensitivities, then plans."""
        trials, choices = self.trials, self.choices
        trials.expected = len(choices) + 2 + (self.n_tensors if len(choices) > 1 else 0)
        self.measure(self.uniform(choices[0]))
        self.check_reach()
        for bits in choices[1:]:
            self.measure(self.uniform(bits))
        self.check_reach()
        middle = min(choices, key=self.distance)
        sensitivities: tuple[TensorSensitivity, ...] = ()
        if len(choices) > 1:
            sensitivities = trials.each_alone(self.settings(self.uniform(middle)))
        alone = [max(s.kl_nats, 0.0) for s in sensitivities] or [0.0] * self.n_tensors
        uniform = {bits: self.found[self.uniform(bits)] for bits in choices}
        self.options = predictions(alone, middle, uniform)
        path = allocations([list(of_tensor.values()) for of_tensor in self.options])
        chosen = self.search(path)
        planned = replace(
            self.found[chosen], settings=self.settings(chosen, True).over(self.trials.stored)
        )
        depth = self.depth(planned.totals.coded_bytes or 0)
        run = trials.run(planned.settings, self.by_text[chosen])
        widths = tuple(Candidate.of(f"uniform {bits}", m) for bits, m in uniform.items())
        rival = self.rival(chosen, widths)
        notices = self.notices(chosen, depth, rival)
        return Plan(
            run=run.with_warnings(notices),
            target=self.target,
            choices=choices,
            sensitivity_bits=middle,
            continuations=trials.done,
            predicted_kl_nats=self.predicted(chosen) if sensitivities else None,
            sensitivities=sensitivities,
            measurement=planned,
            uniform=widths,
            depth=depth,
            rival=rival,
        )

    def measure(self, chosen: Widths) -> Measurement:
        """All texts under some widths, read once."""
        if chosen not in self.found:
            self.by_text[chosen] = self.trials.measure(self.settings(chosen))
            self.found[chosen] = self.trials.pooled(self.by_text[chosen])
        return self.found[chosen]

    def settings(self, widths: Widths, always_plan: bool = False) -> Settings:
        """The settings that give tensors their widths."""
        if len(set(widths)) == 1 and not always_plan:
            return replace(self.base, key_bits=widths[0], value_bits=widths[0])
        keys, values = widths[::2], widths[1::2]
        return replace(
            self.base,
            schedule="plan",
            key_bits=max(keys),
            value_bits=max(values),
            plan=PlannedWidths("", self.trials.model, keys, values, *self.kept),
        )

    def uniform(self, bits: int) -> Widths:
        """The same width for every tensor."""
        return (bits,) * self.n_tensors

    @property
    def limit(self) -> float:
        """The target as coded bytes; infinite where it is a KL."""
        if self.target.figure == "kl_nats":
            return inf
        if self.target.figure == "coded_bytes":
            return self.target.value
        return self.target.value * next(iter(self.found.values())).totals.elements / 8

    def check_reach(self) -> None:
        """Raise InputError if the target is out of reach.

        The fewest bytes are known from the narrowest width, and the lowest KL from the rest.
        """
        narrowest = self.found[self.uniform(self.choices[0])].totals
        if (narrowest.coded_bytes or 0) > self.limit:
            raise InputError(
                f"no plan fits: with {counted(self.choices[0], 'bit')} everywhere it takes "
                f"{narrowest.coded_bytes:,} bytes, {narrowest.coded_bits_per_element:.3f} bits an "
                "element",
                "raise the target, or add narrower --choices",
            )
        if self.limit == inf and len(self.found) == len(self.choices):
            bits, best = min(self.kl_by_width().items(), key=lambda item: item[1])
            if best > self.target.value:
                raise InputError(
                    f"no plan reaches a KL of {self.target.value:g}: with {counted(bits, 'bit')} "
                    f"everywhere it is {best:.3g} nats",
                    "raise the target, or add wider --choices",
                )

    def kl_by_width(self) -> dict[int, float]:
        """The measured KL of each uniform width."""
        return {bits: _kl(self.found[self.uniform(bits)]) for bits in self.choices}

    def distance(self, bits: int) -> float:
        """How far a uniform width is from the target."""
        measured = self.found[self.uniform(bits)]
        if self.limit < inf:
            return abs((measured.totals.coded_bytes or 0) - self.limit)
        return abs(log(max(_kl(measured), LEAST_KL)) - log(self.target.value))

    def predicted(self, widths: Widths) -> float:
        """The KL that is expected from some widths."""
        return sum(o[bits].kl_nats for o, bits in zip(self.options, widths, strict=True))

    def search(self, path: Sequence[Allocation]) -> Widths:
        """The best widths that were measured, among plans on the path and uniform widths."""
        if self.limit < inf:
            self.measure(filled(path, self.options, self.limit))
            fitting = [w for w, m in self.found.items() if _coded(m) <= self.limit]
            return min(fitting, key=lambda widths: _kl(self.found[widths]))
        self.approach(path)
        holding = [w for w, m in self.found.items() if _kl(m) <= self.target.value]
        return min(holding, key=lambda widths: _coded(self.found[widths]))

    def approach(self, path: Sequence[Allocation]) -> None:
        """Measure plans ever closer to the target KL, as long as the budget lasts."""
        budget = self.n_tensors + 2 * len(self.choices) - 1  # one is left for the depth schedule
        low, high, correction = -1, len(path), 1.0
        while self.trials.done < budget and high - low > 1:
            promising = (
                place
                for place, point in enumerate(path)
                if point.kl_nats * correction <= self.target.value
            )
            place = min(max(next(promising, high), low + 1), high - 1)
            kl = _kl(self.measure(path[place].bits))
            correction = kl / path[place].kl_nats if path[place].kl_nats else 1.0
            if kl > self.target.value:
                low = place
            else:
                high = place
                if kl >= _CLOSE * self.target.value:
                    return

    def depth(self, size: int) -> Candidate | None:
        """The widest depth schedule of about so many bytes at most, measured."""
        for bits in range(MAX_BITS, 2, -1):
            settings = replace(self.base, schedule="depth", key_bits=bits, value_bits=bits)
            keys, values = widths(settings, self.trials.n_layers)
            pairs = [bits for both in zip(keys, values, strict=True) for bits in both]
            try:
                total = sum(map(self.coded_bytes, range(len(pairs)), pairs))
            except UsageError:
                continue  # a width that the scheme does not have
            if total <= SAME_BYTES * size:
                measured = self.trials.pooled(self.trials.measure(settings))
                return Candidate.of(settings.widths, measured)
        return None

    def rival(self, chosen: Widths, uniform: Sequence[Candidate]) -> Rival | None:
        """Return the plan against the uniform widths around its bytes; None if all take more."""
        size = _coded(self.found[chosen])
        low = best_within(uniform, size)
        if low is None:
            return None
        wider = [one for one in uniform if one.coded_bytes > max(size, low.coded_bytes)]
        high = min(wider, key=lambda one: one.coded_bytes, default=low)
        between = high.coded_bytes - low.coded_bytes
        share = max(size - low.coded_bytes, 0) / between if between else 0.0
        ours, *theirs = (
            positions_over(self.by_text[bits])
            for bits in (chosen, *(self.uniform(one.settings.key_bits) for one in (low, high)))
        )
        ratio, *ends = kl_ratio(ours, theirs, share)
        return Rival((high if share > 0.5 else low).name, ratio, *ends)

    def notices(self, chosen: Widths, depth: Candidate | None, rival: Rival | None) -> list[Notice]:
        """Say where a mix of widths is no better than a rule."""
        planned = self.found[chosen]
        found = quality_notices([("the plan", planned.quality)]) if planned.quality else []
        if rival and not rival.is_beaten and len(set(chosen)) > 1:
            message = f"the plan is not better than {rival.name} beyond the error of the KL"
            found.append(Notice("plan-not-better", message))
        if len(set(chosen)) == 1 and len(self.choices) > 1:
            message = f"no mix of widths that was measured was better than {chosen[0]} everywhere"
            found.append(Notice("plan-is-uniform", message))
        if depth and depth.quality.kl_nats < _kl(self.found[chosen]):
            message = f"{depth.name} has a lower KL than the plan in the same bytes"
            used = {bits for part in widths(depth.settings, self.trials.n_layers) for bits in part}
            if not used <= set(self.choices):
                message += "; its widths are not all among the choices"
            found.append(Notice("plan-worse-than-depth", message))
        return found

    def coded_bytes(self, place: int, bits: int) -> int:
        """A tensor's size at any width; coding does not need the model."""
        uniform = self.uniform(bits)
        if uniform not in self.found:
            self.found[uniform] = self.trials.sizes(self.settings(uniform))
        return self.found[uniform].tensors[place].coded_bytes or 0


def _kl(measured: Measurement) -> float:
    return measured.quality.kl_nats if measured.quality else inf


def _coded(measured: Measurement) -> int:
    return measured.totals.coded_bytes or 0
