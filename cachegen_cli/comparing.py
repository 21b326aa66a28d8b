"""Every scheme at a few settings on the same texts, for curves of rate against distortion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from cachegen_cli.analysis import Source, captured
from cachegen_cli.captures import Texts
from cachegen_cli.errors import UsageError
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.results import Candidate, Comparison, Measurement, Notice, Settings, Target
from cachegen_cli.schedules import check, settings_with
from cachegen_cli.schemes import SCHEMES, parse
from cachegen_cli.schemes.affine import DEFAULT_GROUP, GROUP_SIZES
from cachegen_cli.trials import Trials

WIDTHS = (2, 3, 4, 6)  # of schemes that have widths
# options of those that have none, from little loss to much
CURVES: dict[str, tuple[dict[str, Any], ...]] = {
    "cachegen": ({"bins": 64}, {}, {"bins": 16}, {"bins": 8}),
    "uniform": ({"error": 0.03}, {"error": 0.05}, {"error": 0.08}, {"error": 0.14}),
    "exact": ({},),
}


def compare(
    source: Source = None,
    prompt: Texts = None,
    *,
    schemes: Sequence[str] = tuple(SCHEMES),
    at_kl: float | None = None,
    at_bits: float | None = None,
    continuation: int | None = None,
    progress: Progress = no_progress,
    **capture_options: Any,
) -> Comparison:
    """Measure schemes at a few settings each and compare them at equal KL or equal size.

    Args:
        source, prompt, continuation, capture_options: as in `analyze` with quality.
        schemes: NAME or NAME:key=value,...; options that make the curve are not allowed.
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
    grid = [settings for text in dict.fromkeys(schemes) for settings in _curve(text)]
    if not grid:
        raise UsageError("there are no schemes to compare", f"choose from {', '.join(SCHEMES)}")
    texts = captured(source, prompt, progress, capture_options, continuation)
    trials = Trials(texts, "compare", progress)
    dims = {x.shape[2] for text, _ in trials.texts for kv in text.layers
            for x in (kv.keys, kv.values)}  # fmt: skip
    group = next(
        (g for g in (DEFAULT_GROUP, *GROUP_SIZES) if not any(dim % g for dim in dims)), None
    )
    grid = [one for one in (_fitted(settings, dims, group) for settings in grid) if one]
    baseline = _baseline(group)
    if baseline not in grid:
        grid.append(baseline)
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
    kept = {one.scheme for one in grid}
    notices = [
        Notice("scheme-left-out", f"{text} cannot take these head sizes, {sorted(dims)}")
        for text in dict.fromkeys(schemes)
        if parse(text)[0] not in kept
    ]
    return Comparison(
        run=run.with_warnings(notices),
        raw_bytes=totals.raw_bytes,
        mlx_bits_per_element=8 * totals.fixed_bytes / totals.elements if group else None,
        target=target,
        points=tuple(map(_point, pooled)),
    )


def _curve(text: str) -> list[Settings]:
    """A scheme's settings, less what its text fixes."""
    name, options = parse(text)
    if SCHEMES[name].has_bits:
        return [Settings(bits, bits, scheme=name, options=options) for bits in WIDTHS]
    clash = {key for point in CURVES[name] for key in point} & set(options)
    if clash:
        raise UsageError(
            f"a curve of {name} needs its {', '.join(clash)} free", "compare varies it itself"
        )
    return [
        settings_with("uniform", Settings(scheme=name, options=point | options))
        for point in CURVES[name]
    ]


def _fitted(settings: Settings, dims: set[int], group: int | None) -> Settings | None:
    """The setting with a group size of mlx that fits, None where none does."""
    check(settings)
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


def _point(measured: Measurement) -> Candidate:
    if measured.quality is None:
        raise ValueError("its quality was not measured")
    settings = measured.settings
    return Candidate(
        f"{settings.scheme_text} {settings.widths}" if settings.key_bits else settings.scheme_text,
        settings,
        measured.totals.coded_bytes or 0,
        measured.totals.coded_bits_per_element or 0.0,
        measured.quality,
    )
