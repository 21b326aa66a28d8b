"""Schemes at equal KL or equal size, each from settings that are measured ever nearer to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from cachegen_cli.analysis import Source, captured
from cachegen_cli.bootstrap import Floats, interval
from cachegen_cli.captures import Capture
from cachegen_cli.curves import Aim, Curve
from cachegen_cli.errors import UsageError
from cachegen_cli.ladders import ladder
from cachegen_cli.measuring import Measured, positions_over
from cachegen_cli.notices import quality_notices
from cachegen_cli.profilefiles import load_profile
from cachegen_cli.profiles import Profile
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.results.candidates import Candidate, Target
from cachegen_cli.results.comparison import Comparison, Floor, OutOfReach, Standing
from cachegen_cli.results.quality import LEAST_KL
from cachegen_cli.results.run import Notice, Run
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.sizes import Bytes
from cachegen_cli.schedules import check, settings_with
from cachegen_cli.schemes import SCHEMES, parse
from cachegen_cli.schemes.affine import DEFAULT_GROUP, GROUP_SIZES
from cachegen_cli.stepping import TARGETS
from cachegen_cli.texts import Texts
from cachegen_cli.trials import Trials

_READINGS = 7  # of a scheme, about, for the progress bar
# options that a curve varies itself
_FREE = {"cachegen": {"bins"}, "uniform": {"error", "step", *TARGETS}}
_FREE["transform"] = _FREE["uniform"]
_FLOOR = 0.9  # of a floor: a target below that is not looked for
SEEN = 0.5  # of the runs of tokens of a context or a continuation, which is then a known one


def compare(
    source: Source = None,
    prompt: Texts = None,
    *,
    schemes: Sequence[str] | None = None,
    profile: Path | str | None = None,
    at_kl: float | None = None,
    at_bits: float | None = None,
    continuation: int | None = None,
    progress: Progress = no_progress,
    **capture_options: Any,
) -> Comparison:
    """Compare schemes at equal KL or equal size, each between two settings that are near it.

    Args:
        source, prompt, continuation, capture_options: as in `analyze` with quality.
        schemes: NAME or NAME:key=value,...; options that make the curve are not allowed. None
            for all that the profile allows.
        profile: file of a profile of the model; none of its texts may be scored.
        at_kl: nats; by default the KL of mlx-lm's 4-bit cache, or of group's where head_dim
            does not allow that.
        at_bits: coded bits an element, instead of a KL.
        progress: called with (stage, done, of).

    Raises:
        UsageError: schemes or targets that make no sense.
        CachegenError: as in `analyze`.
    """
    for value in (at_kl, at_bits):
        if value is not None and not 0 < value < inf:
            raise UsageError(f"{value} is no target", "it is a number above 0")
    if at_kl is not None and at_bits is not None:
        raise UsageError("curves are compared at a KL or at a size", "give one of both")
    known = load_profile(profile) if profile else None
    if schemes is None:
        schemes = [name for name in SCHEMES if known or SCHEMES[name].profile_use != "must"]
    if known and not any(SCHEMES[parse(s)[0]].profile_use != "none" for s in schemes):
        raise UsageError("none of these schemes uses a profile", "leave out --profile")
    bases = {text: _base(text, known) for text in schemes}
    if not bases:
        raise UsageError("there are no schemes to compare", f"choose from {', '.join(SCHEMES)}")
    for settings in bases.values():
        check(settings, shipped=False)
    texts = captured(source, prompt, progress, capture_options, continuation, list(bases.values()))
    readings = _Readings(Trials(_unseen(texts, known), "compare", progress))
    dims = readings.head_dims
    group = next(
        (g for g in (DEFAULT_GROUP, *GROUP_SIZES) if not any(dim % g for dim in dims)), None
    )
    fitted, notices = _all_fitted(bases, dims, group)
    readings.trials.expected = _READINGS * len(fitted)
    baseline = _baseline(group)
    reference, draws = readings.measure(baseline.scheme, baseline)
    aim = (
        Aim(Target("coded_bits_per_element", at_bits))
        if at_bits is not None
        else Aim(Target("kl_nats", at_kl))
        if at_kl is not None
        else Aim(Target("kl_nats", max(reference.quality.kl_nats, LEAST_KL)), draws)
    )
    floors = [
        readings.floor(text, settings)
        for text, settings in fitted.items()
        if SCHEMES[settings.scheme].profile_use == "must"
    ]
    standings, out_of_reach = readings.standings(fitted, aim, floors)
    fitted.setdefault(baseline.scheme, baseline)
    totals = readings.totals
    return Comparison(
        run=readings.run.with_warnings(
            [*notices, *quality_notices([(reference.name, reference.quality)])]
        ),
        raw_bytes=totals.raw_bytes,
        mlx_bits_per_element=8 * totals.fixed_bytes / totals.elements if group else None,
        target=aim.target,
        target_setting=reference.name if at_kl is None and at_bits is None else "",
        points=readings.points(list(fitted)),
        standings=tuple(standings),
        out_of_reach=tuple(out_of_reach),
        floors=tuple(readings.lowest(floor) for floor in floors),
    )


class _Readings:
    """Settings measured on the texts, each once."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self._measured: list[tuple[str, Settings, Candidate, Floats | None]] = []
        self._first_measured: list[Measured] = []

    @property
    def head_dims(self) -> set[int]:
        """Return head_dim of all keys and values."""
        layers = (kv for text, _ in self.trials.texts for kv in text.layers)
        return {x.shape[2] for kv in layers for x in (kv.keys, kv.values)}

    def measure(self, curve: str, settings: Settings) -> tuple[Candidate, Floats | None]:
        """Return a setting's size and quality over all texts, and its KL in resamples."""
        for _, asked, candidate, draws in self._measured:
            if asked == settings:
                return candidate, draws
        measured = self.trials.measure(settings)
        self._first_measured = self._first_measured or measured
        widths = f" {settings.widths}" if settings.key_bits else ""
        name = settings.scheme_text + widths
        candidate = Candidate.of(name, self.trials.pooled(measured), curve)
        draws = positions_over(measured).kl_draws()
        self._measured.append((curve, settings, candidate, draws))
        return candidate, draws

    def floor(self, text: str, settings: Settings) -> Floor:
        """Return the KL that is left at the smallest step, by what the basis leaves out."""
        least, *_ = SCHEMES[settings.scheme].errors
        finest = replace(settings, options=settings.options | {"error": least})
        quality = self.trials.positions(finest).quality()
        return Floor(text, quality.kl_nats, quality.kl_nats_low, quality.kl_nats_high)

    def lowest(self, floor: Floor) -> Floor:
        """Return a floor, or where a larger step of the curve has a lower KL, that."""
        qualities = [c.quality for text, _, c, _ in self._measured if text == floor.scheme]
        least = min(qualities, key=lambda quality: quality.kl_nats)
        if least.kl_nats >= floor.kl_nats:
            return floor
        return Floor(floor.scheme, least.kl_nats, least.kl_nats_low, least.kl_nats_high)

    def standings(
        self, bases: Mapping[str, Settings], aim: Aim, floors: Sequence[Floor]
    ) -> tuple[list[Standing], list[OutOfReach]]:
        """Return where every scheme's curve meets the target, and the curves that do not."""
        standings, unmet = [], []
        lowest = {floor.scheme: floor.kl_nats for floor in floors}
        for text, base in bases.items():
            steps = ladder(base)
            if steps is None:
                self.measure(text, base)
                continue
            curve = Curve(text, steps, partial(self.measure, text))
            if not aim.at_bits and _FLOOR * lowest.get(text, 0.0) >= aim.target.value:
                reason = f"on these texts it has KL {lowest[text]:.3g} at any step, its floor"
                unmet.append(OutOfReach(text, reason))
                continue
            curve.approach(aim)
            standing = curve.standing(aim)
            if standing is None:
                unmet.append(OutOfReach(text, curve.why_not(aim)))
            else:
                standings.append(standing)
        return ranked(standings, aim), unmet

    def points(self, curves: Sequence[str]) -> tuple[Candidate, ...]:
        """Return every setting that was measured, curve by curve."""
        by_curve = sorted(self._measured, key=lambda measured: curves.index(measured[0]))
        return tuple(candidate for _, _, candidate, _ in by_curve)

    @property
    def totals(self) -> Bytes:
        """Return the sizes of the setting that was measured first."""
        return self.trials.pooled(self._first_measured).totals

    @property
    def run(self) -> Run:
        """Return the texts' run, with the warnings of the setting that was measured first."""
        return self.trials.run(self._measured[0][2].settings, self._first_measured)


def ranked(read: list[tuple[Standing, Floats | None]], aim: Aim) -> list[Standing]:
    """Return standings, the best first, each with those that it beats."""

    def cost(standing: Standing) -> float:
        return standing.kl_nats if aim.at_bits else standing.coded_bits_per_element

    ordered = sorted(read, key=lambda pair: cost(pair[0]))
    return [
        replace(
            standing,
            beats=tuple(
                other.scheme
                for other, others in ordered
                if draws is not None and others is not None and interval(others - draws)[0] > 0
            ),
        )
        for standing, draws in ordered
    ]


def _unseen(texts: Iterable[Capture], profile: Profile | None) -> Iterator[Capture]:
    """The texts, none of which was calibrated on.

    Raises:
        UsageError: one was.
    """
    for text in texts:
        parts = (text.tokens, text.live.continuation if text.live else ())
        seen = max(profile.documents.share(part) for part in parts) if profile else 0.0
        if profile and seen >= SEEN:
            raise UsageError(
                f"{text.prompt.source} is among the texts of profile '{profile.info.file}' "
                f"({seen:.0%} of the runs of tokens of what is compressed or scored are)",
                "score another text, or calibrate without it",
            )
        yield text


def _base(text: str, profile: Profile | None) -> Settings:
    """Return a scheme's settings without what its curve varies."""
    name, options = parse(text)
    if clash := _FREE.get(name, set()) & set(options):
        raise UsageError(
            f"a curve of {name} needs its {', '.join(clash)} free", "compare varies it itself"
        )
    info = profile.info if profile and SCHEMES[name].profile_use != "none" else None
    return settings_with("uniform", Settings(scheme=name, options=options, profile=info))


def _all_fitted(
    bases: Mapping[str, Settings], dims: set[int], group: int | None
) -> tuple[dict[str, Settings], list[Notice]]:
    """Return the schemes that these head sizes allow, each once, and what to say of the others."""
    fitted: dict[str, Settings] = {}
    notices = []
    for text, base in bases.items():
        settings = _fitted(base, dims, group)
        twin = next((name for name, other in fitted.items() if other == settings), None)
        if settings is None:
            message = f"{text} cannot take these head sizes, {sorted(dims)}"
            notices.append(Notice("scheme-left-out", message))
        elif twin:
            notices.append(Notice("scheme-named-twice", f"{text} is the same as {twin} here"))
        else:
            fitted[text] = settings
    return fitted, notices


def _fitted(settings: Settings, dims: set[int], group: int | None) -> Settings | None:
    """The setting with a group size of mlx that fits, None where none does."""
    if settings.scheme != "mlx":
        return settings
    own = settings.options.get("group_size", group)
    if own is None or any(dim % own for dim in dims):
        return None
    return replace(_baseline(own), key_bits=settings.key_bits, value_bits=settings.value_bits)


def _baseline(group: int | None) -> Settings:
    """mlx-lm's 4-bit cache, or the seed's groups where that cannot be."""
    if group is None:
        return Settings()
    return Settings(scheme="mlx", options={} if group == DEFAULT_GROUP else {"group_size": group})
