"""From a model and texts to results: capture once, measure under any settings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cachegen_cli.captures import Capture, capture_texts
from cachegen_cli.errors import CachegenError, UsageError
from cachegen_cli.infos import tool_versions
from cachegen_cli.measuring import Measured, measure_texts, pooled_over, stepped
from cachegen_cli.model import Model, one_line
from cachegen_cli.notices import check_applies, notices_of, quality_notices, width_notices
from cachegen_cli.planes import STAGES
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.quality import Reference
from cachegen_cli.ranks import ALONE, Ranks, gathered, ranks
from cachegen_cli.results.analyses import Analysis, Sweep
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.planning import Plan
from cachegen_cli.results.run import Run
from cachegen_cli.results.settings import Settings
from cachegen_cli.schedules import SCHEDULES, check, settings_of
from cachegen_cli.schemes import parse, scheme_named
from cachegen_cli.stepping import is_open
from cachegen_cli.texts import Texts
from cachegen_cli.units import profile_of

WIDTHS = (2, 3, 4, 8)  # of a sweep
PROMPTS = "prompts"  # are what processes share out, unless they share a model
Source = Capture | Sequence[Capture] | str | Model | None
"""Captures to use again, or a model."""


def analyze(
    source: Source = None,
    prompt: Texts = None,
    *,
    bits: int | None = None,
    key_bits: int | None = None,
    value_bits: int | None = None,
    group_size: int | None = None,
    scheme: str = "group",
    schedule: str | Path | Plan = "uniform",
    delta: str = "auto",
    pooled: bool = False,
    keep_first: int = 0,
    keep_last: int = 0,
    profile: Path | str | None = None,
    quality: bool = False,
    continuation: int | None = None,
    detail: bool = False,
    progress: Progress = no_progress,
    **capture_options: Any,
) -> Analysis:
    """Measure one setting on a model's KV cache.

    Args:
        source: a `Capture` to use again, or several, or the model that `capture_texts` takes.
        prompt: the text or texts that `capture_texts` takes; over several, sizes are sums.
        bits: code width of keys and values, 4 where the scheme has one; ``key_bits`` or
            ``value_bits`` overrides it.
        group_size: tokens a group, 32 by default, or channels a group of scheme mlx, 64.
        scheme: NAME or NAME:key=value,... of `schemes.SCHEMES`.
        schedule: "uniform", "depth" for fewer bits in deeper layers (`layer_group_bits`), or
            a `Plan` or its file, which decides all widths.
        delta: token deltas "on", "off", or "auto" for the smaller of the two in each tensor.
        pooled: one distribution a head instead of one a channel, in the entropy estimate.
        keep_first, keep_last: tokens to leave in 16 bits; groups lie between them.
        profile: file of a profile of the model, for schemes that use one.
        quality: measure what the compressed cache does to predictions, too.
        continuation: the last tokens of each text, which are left out of the cache for that;
            None for 256, or half of a shorter text. Where it is given, quality is measured.
        detail: count how often codes occur and what groups of channels take, too.
        progress: called with (stage, done, of).
        capture_options: further arguments of `capture_texts`.

    Raises:
        CachegenError: settings, model or prompt that cannot be used.
    """
    settings = settings_of(
        scheme,
        bits=bits,
        key_bits=key_bits,
        value_bits=value_bits,
        schedule=schedule,
        profile=profile,
        group_size=group_size,
        delta=delta,
        pooled=pooled,
        keep_first=keep_first,
        keep_last=keep_last,
    )
    run, rows = _measured(
        source, prompt, [settings], quality, continuation, progress, capture_options, detail
    )
    return Analysis(run, rows[0])


def sweep(
    source: Source = None,
    prompt: Texts = None,
    *,
    bits: Sequence[int] | None = None,
    group_sizes: Sequence[int] | None = None,
    scheme: str = "group",
    schedule: str | Path | Plan = "uniform",
    delta: str = "auto",
    pooled: bool = False,
    keep_first: int = 0,
    keep_last: int = 0,
    profile: Path | str | None = None,
    quality: bool = False,
    continuation: int | None = None,
    progress: Progress = no_progress,
    **capture_options: Any,
) -> Sweep:
    """Measure every width with every group size on the KV cache of one prefill a text.

    Args and errors as in `analyze`; rows run through ``bits`` (2, 3, 4 and 8, or one row where
    the scheme has no widths) for each group size in turn. A plan adds a row to the uniform widths
    of each group size.

    Raises:
        InputError: there are several settings, and the cache is quantized already.
    """
    rest: dict[str, Any] = {
        "profile": profile,
        "delta": delta,
        "pooled": pooled,
        "keep_first": keep_first,
        "keep_last": keep_last,
    }
    usual = WIDTHS if scheme_named(parse(scheme)[0]).has_bits else (None,)
    widths = usual if bits is None else tuple(dict.fromkeys(bits))
    named = schedule in SCHEDULES
    grid = []
    for size in (None,) if group_sizes is None else dict.fromkeys(group_sizes):
        of_rows = [(width, schedule if named else "uniform") for width in widths]
        of_rows += [] if named else [(None, schedule)]
        grid += [
            settings_of(scheme, bits=width, schedule=rule, group_size=size, **rest)
            for width, rule in of_rows
        ]
    if not grid:
        raise UsageError("nothing to sweep", "give at least one width and one group size")
    run, rows = _measured(source, prompt, grid, quality, continuation, progress, capture_options)
    return Sweep(run, rows)


def _measured(
    source: Source,
    prompts: Texts,
    grid: Sequence[Settings],
    quality: bool,
    continuation: int | None,
    progress: Progress,
    options: dict[str, Any],
    detail: bool = False,
) -> tuple[Run, tuple[Measurement, ...]]:
    """Every setting on every text, shared out over ranks, or read by all of them together."""
    together = options.get("shard", PROMPTS) != PROMPTS
    share = ALONE if together else ranks()
    quality = quality or bool(continuation)
    for settings in grid:
        check(settings)
    if share.size > 1 and any(is_open(settings) for settings in grid):
        raise UsageError(
            "a target is found on the first text, which one process alone reads",
            "give an error instead",
        )
    texts = captured(
        source, prompts, progress, options, continuation if quality else 0, grid, share
    )
    own = _one_by_one(texts, grid, quality, progress, detail)
    ordered = list(own) if share.size == 1 else _from_all(own, share)
    prompt = [one.run.prompt for one in ordered]
    rows = tuple(
        pooled_over([one.measured[place] for one in ordered], prompt) for place in range(len(grid))
    )
    notices = quality_notices([(row.settings.label, row.quality) for row in rows if row.quality])
    return Run.over([one.run for one in ordered]).with_warnings(
        [*notices, *width_notices(rows)]
    ), rows


def _from_all(own: Iterator[_OneText], share: Ranks) -> list[_OneText]:
    """This rank's texts and those of the others, in their order.

    Raises:
        CachegenError: one rank failed; on all alike.
    """
    found: list[_OneText] | CachegenError
    try:
        found = list(own)
    except CachegenError as error:
        found = error
    except Exception as error:
        found = CachegenError(f"rank {share.rank} failed: {one_line(error)}")
    parts: list[Any] = gathered(found)
    # text i was read by rank i modulo their number
    n = sum(len(part) for part in parts)
    return [parts[i % share.size][i // share.size] for i in range(n)]


class _OneText(NamedTuple):
    """A text under every setting of a grid."""

    run: Run
    measured: list[Measured]


def _one_by_one(
    texts: Iterator[Capture],
    grid: Sequence[Settings],
    quality: bool,
    progress: Progress,
    detail: bool,
) -> Iterator[_OneText]:
    """Only one text's cache and reference are held at a time."""
    for text in texts:
        if len(grid) > 1:
            check_applies(text, "a sweep of several settings")
        started = time.perf_counter()
        reference, seconds = None, {}
        if quality:
            progress("reference", 0, 1)
            reference = Reference(text)
            seconds = {"reference_seconds": time.perf_counter() - started}
        grid = [stepped(settings, text, reference) for settings in grid]
        found = measure_texts(text, grid, reference, progress, detail)
        yield _OneText(run_of(text, started, grid, seconds, found), found)


def captured(
    source: Source,
    prompts: Texts,
    progress: Progress,
    options: dict[str, Any],
    continuation: int | None = 0,
    grid: Sequence[Settings] = (),
    share: Ranks = ALONE,
) -> Iterator[Capture]:
    """The captures that are given, or those made now, one by one.

    Args:
        grid: settings whose profile has to be of the model.
        share: of which processes this one takes its share of the texts.
    """
    if source is None or isinstance(source, str | Model):
        profile = next((found for one in grid if (found := profile_of(one))), None)
        yield from capture_texts(
            source,
            prompts,
            continuation=continuation,
            profile=profile,
            share=(share.rank, share.size),
            progress=progress,
            **options,
        )
        return
    if continuation:
        raise UsageError(
            "a cache has its prompt already, and a text after it is read whole",
            "leave out the continuation (--continuation)",
        )
    if prompts is not None or options:
        raise UsageError("a capture has its prompt already", "leave out prompt and its options")
    given = [source] if isinstance(source, Capture) else list(source)
    yield from given[share.rank :: share.size]


def run_of(
    source: Capture,
    started: float,
    grid: Sequence[Settings],
    times: dict[str, float] | None = None,
    measured: Sequence[Measured] = (),
) -> Run:
    """What to say of a text's run that began to analyze at ``started``."""
    timing = source.timing | {"analysis_seconds": time.perf_counter() - started} | (times or {})
    for stage in STAGES if measured else ():
        timing[f"{stage}_seconds"] = sum(one.seconds.get(stage, 0.0) for one in measured)
    return Run(
        tool=tool_versions(),
        model=source.model,
        prompt=source.prompt,
        skipped=source.skipped,
        warnings=notices_of(source, grid, [one.sizes for one in measured]),
        timing={name: round(seconds, 6) for name, seconds in timing.items()},
    )
