"""What compression does to the model's predictions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cachegen_cli.results.picking import pick


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Predictions on a compressed cache against those on the untouched one.

    Every ``_stderr`` is the standard error of the mean over positions as if these were
    independent, None where there is one position only.

    Attributes:
        positions: tokens of the continuation that the model read.
        scored_tokens: those that were predicted: all but the first of each text.
        kl_nats: mean of KL(reference || compressed) over positions.
        kl_nats_p99: its 99th percentile.
        reference_perplexity, perplexity: of the scored tokens, on either cache.
        log_likelihood_difference_nats: mean of compressed - reference by scored token.
        top1_agreement: fraction of positions where both have the same most likely token.
    """

    positions: int
    scored_tokens: int
    kl_nats: float
    kl_nats_stderr: float | None
    kl_nats_p99: float
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

    def to_json(self) -> dict[str, Any]:
        """Fields and what is derived from them."""
        return asdict(self) | {"perplexity_difference": self.perplexity_difference}
