"""The CacheGen paper's observations, measured on a model and prompt of the user's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from cachegen_cli.results.picking import pick
from cachegen_cli.results.run import Run


@dataclass(frozen=True)
class Finding:
    """One figure, averaged over layers and texts.

    Attributes:
        observation: what was measured; its unit stands in it.
        tensor: "keys", "values" or "both".
        measured: None where it is not defined.
        null: the same where what is claimed has been shuffled away; None where shuffling changes
            nothing, or was not done.
        paper: what the paper says, or "".
    """

    observation: str
    tensor: str
    measured: float | None
    null: float | None = None
    paper: str = ""


@dataclass(frozen=True)
class Insights:
    """The result of ``insights``: figures, and a plain verdict on each observation."""

    kind: ClassVar = "insights"
    run: Run
    findings: tuple[Finding, ...]

    def of(self, observation: str, tensor: str) -> float | None:
        """A figure."""
        return next(
            (
                one.measured
                for one in self.findings
                if (one.observation, one.tensor) == (observation, tensor)
            ),
            None,
        )

    @property
    def verdicts(self) -> list[str]:
        """A sentence for each observation."""
        found = [self._locality(), self._design(), self._grouping(), self._tables(), self._depth()]
        return [sentence for sentence in found if sentence]

    def _locality(self) -> str:
        ratios = [(name, self.of(CONSECUTIVE, name)) for name in TENSORS]
        known = [(name, ratio) for name, ratio in ratios if ratio is not None]
        if not known:
            return ""
        figures = ", ".join(f"{name} {ratio:.2f}" for name, ratio in known)
        helped = [name for name, ratio in known if ratio > 1]
        verdict = (
            "Consecutive tokens are alike, as the paper says"
            if all(ratio >= 2.4 for _, ratio in known)
            else f"Deltas of consecutive tokens are smaller than the values only in {helped[0]}"
            if len(helped) == 1
            else "Deltas of consecutive tokens are smaller than the values, but less than there"
            if helped
            else "Deltas of consecutive tokens are no smaller than the values here"
        )
        return f"{verdict}: variance falls by a factor of {figures} (paper 2.4-2.9, by chance 0.5)."

    def _design(self) -> str:
        parts = []
        for name in TENSORS:
            paper, raw, best = (self.of(design, name) for design in (ANCHORS, RAW, DPCM))
            if paper is not None and raw is not None and best is not None:
                more = "more" if paper > raw else "less"
                parts.append(
                    f"{name} {paper:.2f} bits an element, {abs(paper - raw):.2f} {more} than plain "
                    f"codes ({raw:.2f}; deltas of consecutive tokens {best:.2f})"
                )
        return (
            "The paper's anchors and deltas take, at equal error: " + "; ".join(parts) + "."
            if parts
            else ""
        )

    def _grouping(self) -> str:
        channel, token = self.of(BY_CHANNEL, "both"), self.of(BY_TOKEN, "both")
        pooled = self.of(POOLED, "both")
        if channel is None or token is None or not pooled:
            return ""
        verdict = "holds" if channel < token else "does not hold"
        less = "less" if channel <= pooled else "more"
        return (
            f"That distributions by layer and channel tell more than by token {verdict} here: "
            f"{channel:.2f} bits an element against {token:.2f}, and {pooled:.2f} with one for all "
            f"({abs(1 - channel / pooled):.0%} {less}; paper up to 53 %)."
        )

    def _tables(self) -> str:
        shipped, coded, pooled = (self.of(name, "both") for name in (SHIPPED, IN_OBJECTS, POOLED))
        if shipped is None or coded is None or pooled is None:
            return ""
        saved, verdict = pooled - coded, "more than" if shipped > pooled - coded else "less than"
        return (
            "Stored with every object of 256 tokens, as the shipped codec does, such tables cost "
            f"{shipped:.2f} bits an element, "
            + (f"{verdict} the {saved:.2f} that they save." if saved > 0 else "and save nothing.")
        )

    def _depth(self) -> str:
        found, needed = self.of(DEPTH, "both"), self.of(NEEDED, "both")
        if found is None or needed is None:
            return ""
        if abs(found) < needed:
            return (
                f"Depth and sensitivity do not hang together here (rank correlation {found:+.2f})."
            )
        which = "Shallow" if found < 0 else "Deep"
        agrees = "as the paper says" if found < 0 else "the reverse of the paper"
        return f"{which} layers are more sensitive, {agrees} (rank correlation {found:+.2f})."

    def to_json(self) -> dict[str, Any]:
        """The run's keys, findings and verdicts."""
        return self.run.to_json() | {
            "findings": [asdict(finding) for finding in self.findings],
            "verdicts": self.verdicts,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Insights:
        """The inverse of `to_json`; verdicts are found again."""
        return cls(
            Run.from_json(data), tuple(pick(Finding, finding) for finding in data["findings"])
        )


TENSORS = ("keys", "values")
CONSECUTIVE = "variance / variance of consecutive deltas"
ANCHOR = "variance / variance of deltas to an anchor"
ANCHORS = "anchors + deltas, bits/el"
RAW = "plain codes at that error, bits/el"
DPCM = "consecutive deltas at that error, bits/el"
POOLED = "entropy, one distribution, bits/el"
BY_TOKEN = "entropy by token, bits/el"
BY_LAYER = "entropy by layer, bits/el"
BY_CHANNEL = "entropy by layer and channel, bits/el"
IN_OBJECTS = "entropy by channel of each object, bits/el"
SHIPPED = "tables of 66 bytes a channel and object, bits/el"
MDL = "tables at their least, bits/el"
DEPTH = "rank correlation of KL with depth"
NEEDED = "size beyond which that is not chance"
