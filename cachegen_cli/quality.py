"""What a compressed KV cache does to the model's predictions.

The model reads a text's continuation, teacher-forced, once after the untouched cache of its
context (the reference) and once after each compressed one. The continuation's own keys and
values are not compressed: the cache is loaded from storage and generation goes on. Position
by position, with p the reference's and q the other's distribution over the vocabulary::

    KL(p || q) = sum_i p_i (log p_i - log q_i)    in nats

Probabilities and sums are in float64, from the model's logits in float32, a few positions
at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cachegen_cli.bootstrap import interval, resampled_means
from cachegen_cli.captures import Capture
from cachegen_cli.device import mx
from cachegen_cli.errors import ModelError, UsageError
from cachegen_cli.kvcache import LayerKV, fork
from cachegen_cli.reading import read_on
from cachegen_cli.results.quality import LARGEST, LEAST_KL, Quality

Floats = npt.NDArray[np.float64]
Logits = npt.NDArray[np.float32]

_BLOCK = 1 << 17  # logits at a time: 1 MB in float64, which a processor's cache holds
_NEVER = -1e30  # stands for a logit of minus infinity, whose probability is 0
_SURPRISE = -700.0  # nats a token, beyond which a perplexity overflows


class Positions(NamedTuple):
    """Figures of single positions of the continuations of one or more texts.

    Attributes:
        kl: [n] KL(reference || compressed) in nats.
        agrees: [n] whether both have the same most likely token.
        reference_log_likelihood, log_likelihood: of each text's tokens but the first, in nats.
        lengths: positions of each text.
    """

    kl: Floats
    agrees: npt.NDArray[np.bool_]
    reference_log_likelihood: Floats
    log_likelihood: Floats
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, texts: Sequence[Positions]) -> Positions:
        """Return the positions of several texts as those of all of them."""
        kl, agrees, reference, likelihood = _joined([text[:4] for text in texts])
        lengths = tuple(n for text in texts for n in text.lengths)
        return cls(kl, agrees, reference, likelihood, lengths)

    def kl_draws(self) -> Floats | None:
        """Return the mean KL in each resample of the positions (`resampled_means`)."""
        return resampled_means(self.kl, self.lengths)

    def quality(self) -> Quality:
        """Return means over positions with their errors."""
        scored = tuple(n - 1 for n in self.lengths)
        kl, kl_stderr, low, high = _mean(self.kl, self.lengths)
        agreement, agreement_stderr, *_ = _mean(self.agrees.astype(np.float64), self.lengths)
        difference, difference_stderr, *_ = _mean(
            self.log_likelihood - self.reference_log_likelihood, scored
        )
        reference, reference_stderr = _perplexity(self.reference_log_likelihood, scored)
        perplexity, perplexity_stderr = _perplexity(self.log_likelihood, scored)
        largest = np.sort(self.kl)[-LARGEST:].sum()
        return Quality(
            positions=self.kl.size,
            scored_tokens=self.log_likelihood.size,
            kl_nats=kl,
            kl_nats_stderr=kl_stderr,
            kl_nats_low=low,
            kl_nats_high=high,
            kl_nats_median=float(np.median(self.kl)),
            kl_nats_p99=float(np.quantile(self.kl, 0.99)),
            kl_share_of_largest=float(largest / self.kl.sum()) if self.kl.sum() > 0 else None,
            reference_perplexity=reference,
            reference_perplexity_stderr=reference_stderr,
            perplexity=perplexity,
            perplexity_stderr=perplexity_stderr,
            log_likelihood_difference_nats=difference,
            log_likelihood_difference_nats_stderr=difference_stderr,
            top1_agreement=agreement,
            top1_agreement_stderr=agreement_stderr,
        )


def kl_ratio(
    of: Positions, to: Sequence[Positions], share: float
) -> tuple[float, float | None, float | None]:
    """Return a mean KL by that between two others, straight in log KL, and its 95 % interval.

    Args:
        of, to: the same positions under three settings.
        share: how far from the first of ``to`` to the second.
    """

    def ratio(kl: Floats | float, low: Floats | float, high: Floats | float) -> Floats:
        one, first, second = (np.log(np.maximum(x, LEAST_KL)) for x in (kl, low, high))
        return np.asarray(np.exp(one - (1 - share) * first - share * second))

    found = float(ratio(of.kl.mean(), *(one.kl.mean() for one in to)))
    draws = [one.kl_draws() for one in (of, *to)]
    known = [one for one in draws if one is not None]
    return found, *(interval(ratio(*known)) if len(known) == len(draws) else (None, None))


class Reference:
    """A text's continuation as the model reads it after the untouched cache.

    It holds the logits of all positions once, in the model's own dtype.
    """

    def __init__(self, capture: Capture) -> None:
        """Read the continuation.

        Raises:
            UsageError: the capture keeps no continuation.
            ModelError: the model fails.
        """
        if capture.live is None:
            raise UsageError(
                "there is no continuation to measure quality on",
                "beside a prompt cache give --model, and --prompt with the text that comes next; "
                "make a capture with capture(..., continuation=None)",
            )
        self.live = capture.live
        cache = fork(self.live.cache)
        self.logits = list(read_on(self.live.model, cache, self.live.continuation))

    def compare(self, layers: Iterable[LayerKV] = ()) -> Positions:
        """Read the continuation with some layers' keys and values replaced.

        Args:
            layers: what cache entries hold instead; those that are not named stay untouched.

        Raises:
            ModelError: the model fails, or its logits are not finite.
        """
        live = self.live
        cache = fork(live.cache, layers)
        tokens = np.asarray(live.continuation)
        parts, start = [], 0
        for step, logits in enumerate(read_on(live.model, cache, live.continuation)):
            before, after = _in_float32(self.logits[step]), _in_float32(logits)
            rows = max(1, _BLOCK // after.shape[1])
            for first in range(0, after.shape[0], rows):
                block = slice(first, min(first + rows, after.shape[0]))
                labels = tokens[start + block.start + 1 : start + block.stop + 1]
                parts.append(_compare(before[block], after[block], labels))
            start += after.shape[0]
        kl, agrees, reference, likelihood = _joined(parts)
        found = Positions(kl, agrees, reference, likelihood, (len(live.continuation),))
        finite = all(np.isfinite(column).all() for column in (kl, reference, likelihood))
        if not finite or found.log_likelihood.mean() < _SURPRISE:
            raise ModelError(
                f"{live.model.id} gives predictions that are not finite on this cache",
                "give it more bits, or see whether the model runs in its own dtype",
            )
        return found


def _joined(parts: Sequence[tuple[npt.NDArray[Any], ...]]) -> list[npt.NDArray[Any]]:
    """Return columns from those of parts."""
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _compare(
    reference: Logits, logits: Logits, labels: npt.NDArray[np.int_]
) -> tuple[npt.NDArray[Any], ...]:
    """Return the columns of `Positions` for some positions [n, vocabulary].

    ``labels`` may be one fewer, at the end.
    """
    p_top, q_top = reference.argmax(axis=-1), logits.argmax(axis=-1)
    p, q = _below_top(reference, p_top), _below_top(logits, q_top)
    q_log_sum = np.log(np.exp(q).sum(axis=-1))
    weights = np.exp(p)
    p_sum = weights.sum(axis=-1)
    p_log_sum = np.log(p_sum)
    scored = np.arange(labels.size)
    reference_log_likelihood = p[scored, labels] - p_log_sum[scored]
    np.subtract(p, q, out=p)
    return (
        np.einsum("nv,nv->n", weights, p) / p_sum - p_log_sum + q_log_sum,
        p_top == q_top,
        reference_log_likelihood,
        q[scored, labels] - q_log_sum[scored],
    )


def _below_top(logits: Logits, top: npt.NDArray[np.intp]) -> Floats:
    """Logits less the largest of their position, in float64."""
    largest = np.take_along_axis(logits, top[:, None], axis=-1).astype(np.float64)
    return np.maximum(logits - largest, _NEVER)


def _in_float32(logits: mx.array) -> Logits:
    return np.asarray(logits.astype(mx.float32))


def _mean(
    values: Floats, lengths: Sequence[int]
) -> tuple[float, float | None, float | None, float | None]:
    """Return (mean, its standard error, ends of its 95 % interval)."""
    draws, mean = resampled_means(values, lengths), float(values.mean())
    if draws is None:
        return mean, None, None, None
    return mean, float(draws.std()), *interval(draws)


def _perplexity(log_likelihood: Floats, lengths: Sequence[int]) -> tuple[float, float | None]:
    """Return (exp of the mean surprise, its standard error to first order)."""
    mean, error, *_ = _mean(log_likelihood, lengths)
    perplexity = exp(-mean)
    return perplexity, None if error is None else perplexity * error
