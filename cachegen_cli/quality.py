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
from math import exp, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cachegen_cli.captures import Capture
from cachegen_cli.device import mx
from cachegen_cli.errors import ModelError, UsageError
from cachegen_cli.kvcache import LayerKV, fork
from cachegen_cli.reading import read_on
from cachegen_cli.results.quality import Quality

Floats = npt.NDArray[np.float64]
Logits = npt.NDArray[np.float32]

_BLOCK = 1 << 17  # logits at a time: 1 MB in float64, which a processor's cache holds
_NEVER = -1e30  # stands for a logit of minus infinity, whose probability is 0
_SURPRISE = -700.0  # nats a token, beyond which a perplexity overflows


class Positions(NamedTuple):
    """Figures of single positions of a continuation of n tokens.

    Attributes:
        kl: [n] KL(reference || compressed) in nats.
        agrees: [n] whether both have the same most likely token.
        reference_log_likelihood, log_likelihood: [n - 1] of each token but the first, in nats.
    """

    kl: Floats
    agrees: npt.NDArray[np.bool_]
    reference_log_likelihood: Floats
    log_likelihood: Floats

    @classmethod
    def of(cls, parts: Sequence[Positions]) -> Positions:
        """All positions of several continuations."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def quality(self) -> Quality:
        """Means over positions with their standard errors."""
        kl, kl_stderr = _mean(self.kl)
        agreement, agreement_stderr = _mean(self.agrees.astype(np.float64))
        difference, difference_stderr = _mean(self.log_likelihood - self.reference_log_likelihood)
        reference, reference_stderr = _perplexity(self.reference_log_likelihood)
        perplexity, perplexity_stderr = _perplexity(self.log_likelihood)
        return Quality(
            positions=self.kl.size,
            scored_tokens=self.log_likelihood.size,
            kl_nats=kl,
            kl_nats_stderr=kl_stderr,
            kl_nats_p99=float(np.quantile(self.kl, 0.99)),
            reference_perplexity=reference,
            reference_perplexity_stderr=reference_stderr,
            perplexity=perplexity,
            perplexity_stderr=perplexity_stderr,
            log_likelihood_difference_nats=difference,
            log_likelihood_difference_nats_stderr=difference_stderr,
            top1_agreement=agreement,
            top1_agreement_stderr=agreement_stderr,
        )


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
        found = Positions.of(parts)
        finite = all(np.isfinite(column).all() for column in found)
        if not finite or found.log_likelihood.mean() < _SURPRISE:
            raise ModelError(
                f"{live.model.id} gives predictions that are not finite on this cache",
                "give it more bits, or see whether the model runs in its own dtype",
            )
        return found


def _compare(reference: Logits, logits: Logits, labels: npt.NDArray[np.int_]) -> Positions:
    """Figures of some positions [n, vocabulary]; ``labels`` may be one fewer, at the end."""
    p_top, q_top = reference.argmax(axis=-1), logits.argmax(axis=-1)
    p, q = _below_top(reference, p_top), _below_top(logits, q_top)
    q_log_sum = np.log(np.exp(q).sum(axis=-1))
    weights = np.exp(p)
    p_sum = weights.sum(axis=-1)
    p_log_sum = np.log(p_sum)
    scored = np.arange(labels.size)
    reference_log_likelihood = p[scored, labels] - p_log_sum[scored]
    np.subtract(p, q, out=p)
    return Positions(
        kl=np.einsum("nv,nv->n", weights, p) / p_sum - p_log_sum + q_log_sum,
        agrees=p_top == q_top,
        reference_log_likelihood=reference_log_likelihood,
        log_likelihood=q[scored, labels] - q_log_sum[scored],
    )


def _below_top(logits: Logits, top: npt.NDArray[np.intp]) -> Floats:
    """Logits less the largest of their position, in float64."""
    largest = np.take_along_axis(logits, top[:, None], axis=-1).astype(np.float64)
    return np.maximum(logits - largest, _NEVER)


def _in_float32(logits: mx.array) -> Logits:
    return np.asarray(logits.astype(mx.float32))


def _mean(values: Floats) -> tuple[float, float | None]:
    """(mean, standard error of it)."""
    error = float(values.std(ddof=1)) / sqrt(values.size) if values.size > 1 else None
    return float(values.mean()), error


def _perplexity(log_likelihood: Floats) -> tuple[float, float | None]:
    """(exp of the mean surprise, its standard error to first order)."""
    mean, error = _mean(log_likelihood)
    perplexity = exp(-mean)
    return perplexity, None if error is None else perplexity * error
