"""Which symbol model codes a tensor in the fewest bytes, before anything is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.context import Context
from cachegen_cli.coding.counts import Counts, host_counts
from cachegen_cli.coding.fits import Fit
from cachegen_cli.coding.framing import HEADER_BYTES
from cachegen_cli.coding.models import MODELS, Calibrated, Channel, Plain, Pooled, Shape
from cachegen_cli.coding.ranges import SLACK_BITS, WORD
from cachegen_cli.coding.statistics import Statistics, statistics
from cachegen_cli.errors import UsageError

FEW_TOKENS = 64  # that do not tell how long streams of more tokens get
_HALF_WORD = 4 * WORD  # bits that a stream is rounded up by, give or take as many
_BESIDE_BITS = SLACK_BITS + _HALF_WORD  # of a stream, however long it is
_DEVIATIONS = 2  # that a fit may be off by

Codes = npt.NDArray[np.uint8]
Frequencies = npt.NDArray[np.int64]

_KINDS: tuple[Any, ...] = (Context, Pooled, Channel, Shape)  # those first that spare fitting others


@dataclass(frozen=True)
class Choice:
    """The model that codes a tensor in the fewest bytes, by upper bounds.

    Attributes:
        fit: the fitted model.
        bits: code width.
        shape: (channels, tokens).
        tokens_to_pay: where plain packing won, tokens from which the best model's tables would
            pay, nearly always within a factor of 2; None where they never would or that cannot
            be told.
    """

    fit: Fit
    bits: int
    shape: tuple[int, int]
    tokens_to_pay: int | None = None

    @property
    def predicted_bytes(self) -> int:
        """Upper bound of the stream's length, within 0.1 % + 12 bytes for each of its two
        range-coded streams, tables and payload; some hundred bytes where a context's tables
        are nearly all alike.
        """
        return HEADER_BYTES + self.fit.table_bytes + self.fit.payload_bytes


def choose(
    codes: Codes,
    bits: int,
    *,
    delta: str = "auto",
    model: str = "auto",
    expected: Frequencies | None = None,
) -> Choice:
    """Fit every model allowed and take the one with the shortest stream.

    Args:
        codes: [C, T] codes below 2^bits.
        bits: code width, 1 to 8.
        delta: "on" or "off" to code token deltas or codes; "auto" for the smaller.
        model: a name of `MODELS`, or "auto".
        expected: frequencies [C, symbols] that a decoder has, too; allowed where ``delta`` is
            not "on" and ``model`` is "auto".

    Raises:
        UsageError: no model is left, or the array is not [C, T].
    """
    if codes.ndim != 2 or codes.dtype != np.uint8:
        raise UsageError(f"expected uint8 codes [C, T], got {codes.dtype} {codes.shape}")
    return chosen(host_counts(codes[None], bits), delta=delta, model=model, expected=expected)


def chosen(
    counts: Counts,
    *,
    delta: str = "auto",
    model: str = "auto",
    expected: Frequencies | None = None,
) -> Choice:
    """As `choose`, of codes that were counted."""
    bits, shape = counts.histograms.bits, (counts.channels, counts.tokens)
    empty = not counts.channels * counts.tokens
    plain = Plain.fit(*shape, bits) if model in ("auto", "plain") else None
    best: Fit | None = None  # of the models with tables
    if not empty and model != "plain":
        ways = [
            way for way in statistics(counts) if delta == "auto" or (delta == "on") == way.delta
        ]
        kinds = [kind for kind in _KINDS if model in ("auto", kind.name)]
        for stats in sorted(ways, key=lambda s: s.ideal_bytes):
            best = _best(kinds, stats, best)
    if expected is not None and not empty and model == "auto" and delta != "on":
        known = Calibrated.fit(counts.histograms.raw.reshape(shape[0], -1), expected)
        if known is not None and (best is None or _total(known) <= _total(best)):
            best = known
    if plain and (best is None or _total(plain) <= _total(best)):
        return Choice(plain, bits, shape, _tokens_to_pay(plain, best, shape[1]))
    if best is None:
        raise UsageError(f"model '{model}' does not apply to codes {shape}", "take auto")
    return Choice(best, bits, shape)


def _best(kinds: Sequence[Any], stats: Statistics, best: Fit | None) -> Fit | None:
    """The best of the kinds for one way to see a tensor, if it is better than the best so far.

    Equals are taken in the order of `MODELS`, but tried so that as few as possible need fitting.
    """
    found: dict[str, Fit] = {}
    for kind in kinds:
        if best or found:
            known = min(_total(fit) for fit in (best, *found.values()) if fit)
            if kind.least_bytes(stats) > known:
                continue
        fit = kind.fit(stats)
        if fit is not None:
            found[kind.name] = fit
    for name in MODELS:
        if name in found and (best is None or _total(found[name]) < _total(best)):
            best = found[name]
    return best


def _tokens_to_pay(plain: Fit, best: Fit | None, tokens: int) -> int | None:
    """Return the tokens from which tables would pay, if payload grew with the tokens alone.

    A payload is (parameters) / (2 ln 2) bits too short, since its tables were fitted to it: twice
    the logarithm's shortfall has a chi-squared distribution. None below `FEW_TOKENS`, and where
    what is saved is not known within a half of it.
    """
    if best is None or tokens < FEW_TOKENS:
        return None
    fitted = best.parameters / (2 * log(2)), sqrt(2 * best.parameters) / (2 * log(2))
    saved = 8 * (plain.payload_bytes - best.payload_bytes) + _BESIDE_BITS - fitted[0]
    if saved < 2 * (_HALF_WORD + _DEVIATIONS * fitted[1]):
        return None
    return ceil(tokens * (8 * best.table_bytes + _BESIDE_BITS) / saved)


def _total(fit: Fit) -> int:
    return fit.table_bytes + fit.payload_bytes
