"""Thresholds that a script may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from cachegen_cli.results.measurements import Measurement


class Verdict(NamedTuple):
    """Whether a setting passes a check."""

    passed: bool
    text: str

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'} {self.text}"


def verdicts(
    measured: Sequence[Measurement], kl_above: float | None, saving_below: float | None
) -> list[Verdict]:
    """Every check that is asked for, on every setting.

    Args:
        kl_above: nats that the mean KL may reach; fails where no quality was measured.
        saving_below: fraction of the fixed bytes that coding has to save; fails where nothing is.
    """
    found = []
    for one in measured:
        name = f"{one.settings.label}:"
        if kl_above is not None:
            kl = one.quality.kl_nats if one.quality else inf
            passed = kl <= kl_above
            word = "at most" if passed else "above"
            found.append(Verdict(passed, f"{name} KL {kl:.3g} nats is {word} {kl_above:g}"))
        if saving_below is not None:
            saving = -inf if one.totals.coded_saving is None else one.totals.coded_saving
            passed = saving >= saving_below
            word = "at least" if passed else "below"
            text = f"{name} saving {100 * saving:.2f} % is {word} {100 * saving_below:g} %"
            found.append(Verdict(passed, text))
    return found
