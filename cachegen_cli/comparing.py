"""Every scheme at a few settings on the same texts, for curves of rate against distortion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from cachegen_cli.analysis import Source, captured
from cachegen_cli.captures import Capture
from cachegen_cli.errors import UsageError
from cachegen_cli.profilefiles import load_profile
from cachegen_cli.profiles import Profile
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.results.comparison import Comparison
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.planning import Candidate, Target
from cachegen_cli.results.run import Notice
from cachegen_cli.results.settings import Settings
from cachegen_cli.schedules import check, settings_with
from cachegen_cli.schemes import SCHEMES, parse
from cachegen_cli.schemes.affine import DEFAULT_GROUP, GROUP_SIZES
from cachegen_cli.stepping import TARGETS
from cachegen_cli.texts import Texts
from cachegen_cli.trials import Trials

WIDTHS = (2, 3, 4, 6)  # of schemes that have widths
# options of those that have none, from little loss to much
CURVES: dict[str, tuple[dict[str, Any], ...]] = {
    "cachegen": ({"bins": 64}, {}, {"bins": 16}, {"bins": 8}),
    "uniform": ({"error": 0.03}, {"error": 0.05}, {"error": 0.08}, {"error": 0.14}),
    "transform": ({"error": 0.05}, {"error": 0.08}, {"error": 0.12}, {"error": 0.18}),
    "exact": ({},),
}
_TARGETS = {"step", *TARGETS}  # options that name one point
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
    """Measure schemes at a few settings each and compare them at equal KL or equal size.

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
    curves = [(text, one) for text in dict.fromkeys(schemes) for one in _curve(text, known)]
    if not curves:
        raise UsageError("there are no schemes to compare", f"choose from {', '.join(SCHEMES)}")
    asked = [settings for _, settings in curves]
    for settings in asked:
        check(settings, shipped=False)
    texts = captured(source, prompt, progress, capture_options, continuation, asked)
    trials = Trials(_unseen(texts, known), "compare", progress)
    dims = {x.shape[2] for text, _ in trials.texts for kv in text.layers
            for x in (kv.keys, kv.values)}  # fmt: skip
    group = next(
        (g for g in (DEFAULT_GROUP, *GROUP_SIZES) if not any(dim % g for dim in dims)), None
    )
    fitted = [(text, one) for text, given in curves if (one := _fitted(given, dims, group))]
    baseline = _baseline(group)
    if baseline not in [one for _, one in fitted]:
        fitted.append((baseline.scheme, baseline))
    grid = [settings for _, settings in fitted]
    trials.expected = len(grid)
    measured = [trials.measure(settings) for settings in grid]
    pooled = [trials.pooled(one) for one in measured]
    reference = pooled[grid.index(baseline)]
    target = (
        Target("coded_bits_per_element", at_bits)
        if at_bits is not None
        else Target("kl_nats", at_kl if at_kl is not None else _kl(reference))
    )
    totals = reference.totals
    run = trials.run(grid[0], measured[0])
    kept = {text for text, _ in fitted}
    notices = [
        Notice("scheme-left-out", f"{text} cannot take these head sizes, {sorted(dims)}")
        for text in dict.fromkeys(schemes)
        if text not in kept
    ]
    return Comparison(
        run=run.with_warnings(notices),
        raw_bytes=totals.raw_bytes,
        mlx_bits_per_element=8 * totals.fixed_bytes / totals.elements if group else None,
        target=target,
        points=tuple(_point(text, one) for (text, _), one in zip(fitted, pooled, strict=True)),
    )


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


def _curve(text: str, profile: Profile | None) -> list[Settings]:
    """A scheme's settings, less what its text fixes."""
    name, options = parse(text)
    info = profile.info if profile and SCHEMES[name].profile_use != "none" else None
    if SCHEMES[name].has_bits:
        return [Settings(bits, bits, scheme=name, options=options) for bits in WIDTHS]
    clash = ({key for point in CURVES.get(name, ({},)) for key in point} | _TARGETS) & set(options)
    if clash:
        raise UsageError(
            f"a curve of {name} needs its {', '.join(clash)} free", "compare varies it itself"
        )
    return [
        settings_with("uniform", Settings(scheme=name, options=point | options, profile=info))
        for point in CURVES.get(name, ({},))
    ]


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


def _kl(measured: Measurement) -> float:
    return max(measured.quality.kl_nats, 1e-12) if measured.quality else 1e-12


def _point(curve: str, measured: Measurement) -> Candidate:
    if measured.quality is None:
        raise ValueError("its quality was not measured")
    settings = measured.settings
    own = CURVES.get(settings.scheme, ())
    free = [v for k, v in settings.options.items() if any(k in point for point in own)]
    shown = [curve, *(f"{value:g}" for value in free)]
    return Candidate(
        f"{settings.scheme_text} {settings.widths}" if settings.key_bits else " ".join(shown),
        settings,
        measured.totals.coded_bytes or 0,
        measured.totals.coded_bits_per_element or 0.0,
        measured.quality,
        curve,
    )
