"""Which layers' keys and values have to be coded finer than others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from cachegen_cli.captures import Capture
from cachegen_cli.progress import Progress
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.spans import Entry
from cachegen_cli.trials import Trials

ERROR = 0.1  # relative, at which tensors are compressed one at a time
_FINEST = 4.0  # weights stay between this and its inverse
_LEAST = 1e-9  # nats that count

Weights = Mapping[tuple[Entry, str], float]
"""By cache entry and tensor; 1 where there is none."""


def sensitivities(texts: Iterable[Capture], progress: Progress) -> Weights:
    """KL in nats with one layer's keys or values alone at a relative error of `ERROR`.

    Args:
        texts: with continuations, which are read 2 x layers times.
    """
    trials = Trials(texts, "weigh", progress)
    trials.expected = 2 * trials.n_layers
    settings = Settings(0, 0, scheme="uniform", options={"error": ERROR})
    rows = trials.each_alone(settings)
    return {(row.layer, row.tensor): max(row.kl_nats, _LEAST) for row in rows}


def step_weights(kl: Weights, shares: Weights) -> Weights:
    """How many times finer than others each tensor's steps should be, 1 in the geometric mean.

    KL grows with the square of a small error, so the sum of all is least, at a given number of
    bits, where every tensor adds as much: steps go with 1 / sqrt(KL at one error).

    Args:
        kl: of `sensitivities`.
        shares: standard deviation by root mean square of each tensor: the errors were relative
            to the one, steps are to the other.
    """
    logs = {key: 0.5 * np.log(kl[key]) + np.log(shares[key]) for key in kl}
    mean = np.mean(list(logs.values())) if logs else 0.0
    return {
        key: float(np.clip(np.exp(value - mean), 1 / _FINEST, _FINEST))
        for key, value in logs.items()
    }
