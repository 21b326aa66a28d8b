"""What compression does to the model's predictions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cachegen_cli.results.picking import pick

LEAST_KL = 1e-12  # nats, that stand for a KL of 0 in logarithms
LARGEST = 5  # positions whose share in the KL is told
_NORMAL_95 = 1.96  # standard errors to either side
_WITH_MARGIN = (
    "reference_perplexity",
    "perplexity",
    "log_likelihood_difference_nats",
    "top1_agreement",
)


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Predictions on a compressed cache against those on the untouched one.

    Every ``_stderr`` is the standard error of a mean over positions, by a bootstrap over blocks
    of neighbouring positions (`bootstrap`); None where there are less than 8 positions.

    Attributes:
        positions: tokens of the continuation that the model read.
        scored_tokens: those that were predicted: all but the first of each text.
        kl_nats: mean of KL(reference || compressed) over positions.
        kl_nats_low, kl_nats_high: its 95 % interval, by the same bootstrap.
        kl_nats_median, kl_nats_p99: median and 99th percentile over positions.
        kl_share_of_largest: share of the largest `LARGEST` positions in the sum of all; None
            where that is 0.
        reference_perplexity, perplexity: of the scored tokens, on either cache.
        log_likelihood_difference_nats: mean of compressed - reference by scored token.
        top1_agreement: fraction of positions where both have the same most likely token.
    """

    positions: int
    scored_tokens: int
    kl_nats: float
    kl_nats_stderr: float | None
    kl_nats_low: float | None
    kl_nats_high: float | None
    kl_nats_median: float
    kl_nats_p99: float
    kl_share_of_largest: float | None
    reference_perplexity: float
    reference_perplexity_stderr: float | None
    perplexity: float
    perplexity_stderr: float | None
    log_likelihood_difference_nats: float
    log_likelihood_difference_nats_stderr: float | None
    top1_agreement: float
    top1_agreement_stderr: float | None

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> Quality | None:
        """The inverse of `dataclasses.asdict`."""
        return None if data is None else pick(cls, data)

    @property
    def perplexity_difference(self) -> float:
        """Perplexity on the compressed cache less that on the untouched one."""
        return self.perplexity - self.reference_perplexity

    @property
    def kl_nats_margin(self) -> float | None:
        """Return half of the 95 % interval of the KL."""
        return margin(self.kl_nats_low, self.kl_nats_high)

    def to_json(self) -> dict[str, Any]:
        """Return the fields and what is derived from them.

        Every ``_margin`` is half of a 95 % interval, which is 1.96 standard errors to either side
        for all but the KL.
        """
        margins = {"kl_nats_margin": self.kl_nats_margin}
        for name in _WITH_MARGIN:
            stderr = getattr(self, f"{name}_stderr")
            margins[f"{name}_margin"] = None if stderr is None else _NORMAL_95 * stderr
        return asdict(self) | margins | {"perplexity_difference": self.perplexity_difference}


def margin(low: float | None, high: float | None) -> float | None:
    """Return half of an interval, None where there is none."""
    return None if low is None or high is None else (high - low) / 2
