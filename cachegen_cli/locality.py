"""The observations that CacheGen (SIGCOMM 2024, arXiv:2310.07240) builds on, as arithmetic.

x is one layer's keys or values, [tokens, channels] with heads merged; codes are [channels,
tokens]. An x of no use raises UsageError for its shape, InputError for NaN or infinite values.

For a stationary channel with variance s^2 and autocorrelation rho_k at lag k, a delta over k
tokens has variance 2 s^2 (1 - rho_k), so a delta only helps where rho_k is above 1/2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, log, sqrt
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.schemes.cachegen import CHUNK_TOKENS

Values = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]
Scalar = TypeVar("Scalar", bound=np.generic)

GROUP = 10  # tokens to an anchor, section 5.2
BINS = (0.5, 1.0, 1.5)  # delta steps in sigmas by third of the layers, appendix C
SHIPPED_TABLE_BYTES = 66  # 33 uint16 entries a channel of an object, whatever its bins


class Ratios(NamedTuple):
    """Variance of values over that of their deltas, by kind of delta: above 1, deltas help."""

    consecutive: float | None
    anchor: float | None


class Grouping(NamedTuple):
    """Bits/element of codes with one distribution a group, and 1 - that over pooled bits.

    Plug-in bits are those of the observed frequencies, which are biased low; corrected ones
    have Miller and Madow's (K_used - 1) / (2 n ln 2) more for a group of n elements.
    """

    plug_in: float
    corrected: float
    gain: float | None
    corrected_gain: float | None


class Entropies(NamedTuple):
    """Entropy of codes by grouping, and bits/element that tables by channel would add.

    By channel is one distribution a channel of each layer; by token is one a token position
    over all layers. Shipped tables are the 66-byte CDF that the shipped codec stores for a channel
    of each object of 256 tokens or what is left of them, and in_objects the plug-in bits of codes
    under such tables, which are an object's own. MDL tables cost (K_used - 1) / 2 log2(tokens)
    bits a channel.
    """

    pooled: Grouping
    by_layer: Grouping
    by_channel: Grouping
    by_token: Grouping
    shipped_tables: float
    mdl_tables: float
    in_objects: float


class Design(NamedTuple):
    """What one way of coding x takes: bits/element of its codes by channel, as in `Grouping`.

    Tables, scales and means are not counted. The error is the RMS of restored - x over that of
    x, 0 if x is 0. The step is what values or deltas are rounded to, 0 if all are taken as 0.
    """

    plug_in: float
    corrected: float
    relative_error: float
    step: float
    restored: Values


def variance_ratios(x: Values, group: int = GROUP) -> tuple[Ratios, Ratios]:
    """Variance ratios (Fig 3) of sums over channels, and medians over channels of their own.

    Consecutive deltas are x_t - x_(t-1). Anchor deltas are x_t less the first token of its
    ``group`` of contiguous tokens, tail included, anchors excluded. Variances are about the
    channel's mean, as a spread of means is nothing that deltas remove. None where undefined.
    """
    values = _checked(x)
    followers = np.arange(len(values)) % group > 0
    deltas = values - np.repeat(values[::group], group, axis=0)[: len(values)]
    consecutive, anchor = (_ratio(values, d) for d in (np.diff(values, axis=0), deltas[followers]))
    return Ratios(consecutive[0], anchor[0]), Ratios(consecutive[1], anchor[1])


def autocorrelation(x: Values, lags: Iterable[int]) -> dict[int, float | None]:
    """Autocorrelation within channels by lag in tokens, channels weighted by their variance.

    The autocovariance at lag k is the mean over tokens - k pairs, about the channel's mean.
    None where lag >= tokens or nothing varies; UsageError if a lag is negative.
    """
    values = _deviations(_checked(x))
    tokens, power = len(values), float(np.vdot(values, values)) / len(values)
    found: dict[int, float | None] = {}
    for lag in lags:
        if lag < 0:
            raise UsageError(f"lags must not be negative, got {lag}")
        found[lag] = None
        if lag < tokens and power > 0:
            products = float(np.vdot(values[lag:], values[: tokens - lag]))
            found[lag] = products / (tokens - lag) / power
    return found


def implied_ratios(rho: Mapping[int, float | None]) -> Ratios:
    """1 / (2 (1 - rho_1)), for anchors 1 / (2 (1 - mean(rho_1 .. rho_9))); None if undefined."""
    rhos = np.array([rho.get(lag) for lag in range(1, GROUP)], np.float64)
    rest = (1 - float(rhos[0]), 1 - float(rhos.mean()))  # NaN stands for None
    return Ratios(*(1 / (2 * r) if r > 0 else None for r in rest))


def shuffled(x: npt.NDArray[Scalar], seed: int, axis: int = 0) -> npt.NDArray[Scalar]:
    """The null control: every line along an axis of a matrix permuted on its own.

    Permuting each channel's tokens (axis 0 of values, 1 of codes) removes locality: ratios become
    1/2, autocorrelation 0, and one distribution a token gains nothing. Permuting each token's
    channels (the other axis) keeps the pooled distribution and removes what one by channel gains,
    but for the bias of estimating it.
    """
    return np.random.default_rng(seed).permuted(x, axis=axis)


def entropies(codes: Integers, n_symbols: int) -> Entropies:
    """`layer_entropies` of a single tensor, where by layer is pooled."""
    return layer_entropies([codes], n_symbols)


def layer_entropies(layers: Sequence[Integers], n_symbols: int) -> Entropies:
    """Entropy of each layer's codes [channels, tokens], 0 to n_symbols - 1 (Fig 5).

    UsageError unless there are layers of such codes with the same tokens.
    """
    sound = all(c.ndim == 2 and c.size and c.min() >= 0 and c.max() < n_symbols for c in layers)
    if not sound or len({codes.shape[1] for codes in layers}) != 1:
        raise UsageError(f"expected layers of codes 0 to {n_symbols - 1} with the same tokens")
    by_channel = [_counts(codes, n_symbols) for codes in layers]
    by_layer = np.stack([counts.sum(axis=0) for counts in by_channel])
    by_token = np.asarray(sum(_counts(codes.T, n_symbols) for codes in layers))
    pooled, channel = _cost(by_layer.sum(axis=0, keepdims=True)), _cost(np.concatenate(by_channel))

    def grouping(cost: Floats) -> Grouping:
        bits, gains = cost.tolist(), 1 - cost / np.where(pooled > 0, pooled, np.nan)
        return Grouping(*bits[:2], *(None if np.isnan(g) else float(g) for g in gains[:2]))

    layer, token = grouping(_cost(by_layer)), grouping(_cost(by_token))
    tokens = layers[0].shape[1]
    objects = [slice(start, start + CHUNK_TOKENS) for start in range(0, tokens, CHUNK_TOKENS)]
    shipped = 8 * SHIPPED_TABLE_BYTES * len(objects) / tokens
    in_objects = 0.0
    for part in objects:
        counts = np.concatenate([_counts(codes[:, part], n_symbols) for codes in layers])
        in_objects += float(_cost(counts)[0]) * len(range(tokens)[part]) / tokens
    return Entropies(
        grouping(pooled), layer, grouping(channel), token, shipped, float(channel[2]), in_objects
    )


def paper_design(x: Values, third: int) -> Design:
    """A reading of section 5.2, which leaves the unit of its bin sizes and the anchor open.

    The first of every 10 tokens is an anchor, coded as -127 .. 127 in steps of its own
    max|x| / 127. The others' deltas to the restored anchor are rounded to multiples of bin *
    sigma: bin is 0.5, 1 or 1.5 by ``third`` of the layers (0, 1, 2, else UsageError), sigma the
    standard deviation of x's deltas in float32. Anchors and deltas have tables of their own. What
    anchors take is estimated from all tokens as if each were one: a tenth of them are too few.
    """
    values = _checked(x)
    if third not in range(len(BINS)):
        raise UsageError(f"third must be 0, 1 or 2, got {third}")
    followers = np.arange(len(values)) % GROUP > 0
    scales = (np.abs(values).max(axis=1, keepdims=True) / 127).astype(np.float32)
    anchor_codes = _rounded(values, scales)
    restored = np.repeat((anchor_codes * scales)[::GROUP], GROUP, axis=0)[: len(values)]
    deltas = values[followers] - restored[followers]
    step = BINS[third] * float(np.float32(deltas.std())) if deltas.size else 0.0
    codes = _rounded(deltas, step)
    restored[followers] += codes * step
    share = 1 - float(followers.mean())
    return _design(values, restored, step, [(anchor_codes, share), (codes, 1 - share)])


def raw_design(x: Values, relative_error: float) -> Design:
    """Values less their channel's mean, rounded to multiples of a step for this error.

    The error is met within 0.1 %, unless the means alone do better: then all codes are 0.
    UsageError if relative_error is not positive where it would have to be.
    """
    return _uniform(x, relative_error, deltas=False)


def consecutive_design(x: Values, relative_error: float) -> Design:
    """Closed-loop DPCM from the channel's mean, with `raw_design`'s arguments and errors."""
    return _uniform(x, relative_error, deltas=True)


def _uniform(x: Values, relative_error: float, deltas: bool) -> Design:
    values = _checked(x)
    means = values.mean(axis=0).astype(np.float32)
    deviations = values - means
    target, step = relative_error * float(np.linalg.norm(values)), 0.0
    if float(np.linalg.norm(deviations)) > target:
        if not target > 0:
            raise UsageError(f"relative_error must be above 0, got {relative_error}")
        step = _step(deviations, target)
    codes = _rounded(deviations, step)
    restored = means + codes * step
    # A restored token is whole steps from the mean, so rounding the delta to it is rounding
    # the value, then taking the delta: DPCM needs no loop, and the same step for an error.
    coded = np.diff(codes, axis=0, prepend=0) if deltas else codes
    return _design(values, restored, step, [(coded, 1.0)])


def _step(values: Floats, target: float) -> float:
    """A step whose rounding error has the norm ``target``, below that of values."""
    low, high, step = 0.0, inf, target * sqrt(12 / values.size)
    for turn in range(150):
        rest = values / step
        error = step * float(np.linalg.norm(rest - np.rint(rest)))
        if abs(error - target) < 1e-3 * target:
            break
        low, high = (step, high) if error < target else (low, step)
        step *= target / max(error, target / 2)  # fine steps are in proportion, outliers are not
        step = step if low < step < high and (turn % 3 or high == inf) else (low + high) / 2
    return step


def _checked(x: Values) -> Floats:
    if x.ndim != 2 or not x.size:
        raise UsageError(f"expected values [tokens, channels], got shape {x.shape}")
    if not np.isfinite(x).all():
        raise InputError("the tensor holds NaN or infinite values")
    return x.astype(np.float64)


def _deviations(values: Floats) -> Floats:
    """Values less their column's mean, exactly 0 in a constant column."""
    offsets = values - values[:1]
    offsets -= offsets.sum(axis=0) / max(len(values), 1)
    return offsets


def _ratio(values: Floats, deltas: Floats) -> tuple[float | None, float | None]:
    """(ratio of variances summed over columns, median of the columns' ratios)."""
    rows = (_deviations(values), _deviations(deltas))
    of, to = (np.einsum("tc,tc->c", r, r) / max(len(r), 1) for r in rows)
    defined = (of > 0) & (to > 0)
    if not defined.any():
        return None, None
    return float(of.sum() / to.sum()), float(np.median(of[defined] / to[defined]))


def _rounded(values: Floats, step: Values | float) -> Integers:
    """Values in steps; 0 where the step is."""
    return np.rint(values / np.where(np.asarray(step) > 0, step, inf)).astype(np.int64)


def _design(
    values: Floats, restored: Floats, step: float, streams: list[tuple[Integers, float]]
) -> Design:
    """Account for kinds of codes [tokens, channels] with tables of their own, by their share."""
    cost = np.zeros(3)
    for codes, share in (stream for stream in streams if stream[0].size):
        symbols = codes.T - codes.min()
        if symbols.max() > symbols.shape[1]:  # far between, so their ranks are counted
            symbols.sort(axis=1)
            symbols = np.cumsum(np.diff(symbols, axis=1, prepend=symbols[:, :1]) > 0, axis=1)
        cost += _cost(_counts(symbols, int(symbols.max()) + 1)) * share
    error = float(np.linalg.norm(restored - values) / (np.linalg.norm(values) or 1.0))
    return Design(float(cost[0]), float(cost[1]), error, step, restored.astype(np.float32))


def _counts(codes: Integers, n_symbols: int) -> Integers:
    """[groups, n_symbols] counts of codes [groups, n]."""
    bins = len(codes) * n_symbols
    keys = codes.astype(np.int64) + np.arange(0, bins, n_symbols)[:, None]
    return np.bincount(keys.ravel(), minlength=bins).reshape(-1, n_symbols)


def _cost(counts: Integers) -> Floats:
    """Bits/element of groups [groups, symbols]: plug-in, corrected, tables by the MDL."""
    n = counts.sum(axis=1)
    extra = ((counts > 0).sum(axis=1) - 1) / 2
    bits = (n * np.log2(n) - (counts * np.log2(np.maximum(counts, 1))).sum(axis=1)).sum()
    parts = (bits, bits + extra.sum() / log(2), (extra * np.log2(n)).sum())
    return np.array(parts, np.float64) / n.sum()
