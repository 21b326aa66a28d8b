"""Which layers' keys and values the model's predictions depend on most."""

from __future__ import annotations

from typing import Any

from cachegen_cli.analysis import Source, captured
from cachegen_cli.measuring import positions_over, stepped
from cachegen_cli.notices import quality_notices
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.results.planning import Sensitivity
from cachegen_cli.results.settings import Settings
from cachegen_cli.schedules import check
from cachegen_cli.texts import Texts
from cachegen_cli.trials import Trials


def sensitivity(
    source: Source = None,
    prompt: Texts = None,
    settings: Settings | None = None,
    *,
    continuation: int | None = None,
    progress: Progress = no_progress,
    **capture_options: Any,
) -> Sensitivity:
    """Compress one tensor at a time, and all at once, and measure the KL of each.

    Reads the continuation 2 x layers + 1 times. The paper's second observation is that
    shallow layers are more sensitive (CacheGen, section 5.1.2), the reason for the schedule
    "depth"; `Sensitivity.depth_correlation` says whether this model is like that.

    Args:
        source, prompt, continuation, capture_options: as in `analyze`.
        settings: how to quantize; 4 bits in groups of 32 by default.
        progress: called with (stage, done, of).

    Raises:
        CachegenError: settings, model or texts that cannot be used.
    """
    settings = settings or Settings()
    check(settings, shipped=False)
    texts = captured(source, prompt, progress, capture_options, continuation, [settings])
    trials = Trials(texts, "sensitivity", progress)
    settings = stepped(settings, *trials.texts[0])
    trials.expected = 2 * trials.n_layers + 1
    measured = trials.measure(settings)
    kept = {kv.layer for text, _ in trials.texts for kv in text.layers if kv.stored}
    rows = tuple(row for row in trials.each_alone(settings) if row.layer not in kept)
    together = positions_over(measured).quality()
    notices = quality_notices([("everything together", together)])
    run = trials.run(settings, measured).with_warnings(notices)
    return Sensitivity(run, measured[0].sizes.settings, rows, together)
