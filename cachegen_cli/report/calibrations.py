"""What is shown of a profile that was just made."""

from __future__ import annotations

from typing import Any

from cachegen_cli.report.columns import skipped_notes, title_of
from cachegen_cli.report.table import Column, View
from cachegen_cli.report.units import percent, si_bytes
from cachegen_cli.results.profile import Calibration
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.spans import Places
from cachegen_cli.wording import counted

_WEIGHTS = (
    "weights: how many times finer than others layers are coded, by their share in the KL; 1 where "
    "that was not measured."
)


def calibration_view(result: Calibration, wide: bool) -> View:
    """A row a basis across layers; with ``wide`` those of single layers, too."""
    columns = (
        Column("layers", "layers", names=True),
        Column("tensor", "tensor", left=True, names=True),
        Column("channels", "channels"),
        Column("components", "components"),
        Column(
            "energy",
            "energy",
            percent,
            about="energy: share of the texts' variance that the components hold, layers scaled "
            "alike.",
        ),
        Column("weight_least", "weights from", _weight, about=_WEIGHTS),
        Column("weight_most", "to", _weight, about=_WEIGHTS),
    )
    widest = max(len(unit.layers) for unit in result.units)
    shown = [unit for unit in result.units if wide or widest == 1 or len(unit.layers) > 1]
    rows = [
        {
            "layers": Places(unit.layers),
            "tensor": unit.tensor,
            "channels": unit.channels,
            "components": unit.components,
            "energy": unit.energy,
            "weight_least": min(unit.step_weights),
            "weight_most": max(unit.step_weights),
        }
        for unit in shown
    ]
    least = min(unit.energy for unit in shown)
    profile, fewest = result.profile, min(unit.channels for unit in shown)
    notes = [
        f"Profile {profile.file}: {si_bytes(profile.profile_bytes)}, from "
        f"{counted(profile.tokens, 'token')} of {counted(profile.texts, 'text')}. It is kept once "
        f"for {profile.model}; no size of a scheme that uses it counts it.",
        f"What the components do not hold is lost at any step: {percent(1 - least)} of these "
        "texts' variance at most, more of others; so is what 8 bits take from their vectors. So "
        "transform has a floor, a KL that no step comes below; cachegen compare --profile measures "
        "it on a text.",
    ]
    if profile.tokens < 2 * fewest:
        notes.insert(
            1,
            f"{counted(profile.tokens, 'token')} for bases of {counted(fewest, 'channel')}: take "
            "several times as many.",
        )
    return View(
        title_of(result.run, Settings(0, 0), grid=True),
        columns, rows, notes=[*notes, *skipped_notes(result.run)],
    )  # fmt: skip


def _weight(value: Any) -> str:
    return f"{value:.2f}"
