"""A cache under one setting: sizes by layer, and what they do to the model's predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

from cachegen_cli.errors import InputError
from cachegen_cli.results.picking import pick
from cachegen_cli.results.quality import Quality
from cachegen_cli.results.run import PromptInfo
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.sizes import Bytes, LayerResult, TensorResult, pooled, total


@dataclass(frozen=True)
class TextResult:
    """One of several texts: all its tensors together, and the predictions after it."""

    prompt: PromptInfo
    totals: Bytes
    quality: Quality | None = None

    def to_json(self) -> dict[str, Any]:
        """The text, its sizes and its quality."""
        return {
            "prompt": asdict(self.prompt),
            "totals": self.totals.to_json(),
            "quality": self.quality.to_json() if self.quality else None,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TextResult:
        """The inverse of `to_json`."""
        return cls(
            pick(PromptInfo, data["prompt"]),
            pick(Bytes, data["totals"]),
            Quality.from_json(data.get("quality")),
        )


@dataclass(frozen=True)
class Measurement:
    """Sizes of every layer under one setting; summed over texts, where there are several.

    Attributes:
        container_bytes: the .cgkv file with its header: as it is, or, in an analysis, about
            what it would be; None in results of earlier versions.
        quality: pooled over the positions of all texts; None where it was not measured.
        texts: each text, where there are several.
    """

    settings: Settings
    layers: tuple[LayerResult, ...]
    container_bytes: int | None = None
    quality: Quality | None = None
    texts: tuple[TextResult, ...] = ()

    @property
    def container_header_bytes(self) -> int | None:
        """The file less its sections."""
        if self.container_bytes is None or self.totals.coded_bytes is None:
            return None
        return self.container_bytes - self.totals.coded_bytes

    @cached_property
    def keys(self) -> Bytes:
        """All keys together."""
        return total(layer.keys for layer in self.layers)

    @cached_property
    def values(self) -> Bytes:
        """All values together."""
        return total(layer.values for layer in self.layers)

    @cached_property
    def totals(self) -> Bytes:
        """Keys and values of all layers."""
        return total((self.keys, self.values))

    @property
    def tensors(self) -> tuple[TensorResult, ...]:
        """Every tensor, keys before values in each layer."""
        return tuple(t for layer in self.layers for t in (layer.keys, layer.values))

    @property
    def spread(self) -> dict[str, dict[str, float]]:
        """Mean and standard deviation over texts of what can be compared between them.

        Empty for a single text; the totals are those of all texts together.
        """
        if len(self.texts) < 2:
            return {}
        columns = {
            name: [getattr(text.totals, name) for text in self.texts]
            for name in (
                "entropy_bits_per_element", "entropy_saving", "coded_bits_per_element",
                "coded_saving", "relative_rms_error",
            )
        }  # fmt: skip
        if all(text.quality for text in self.texts):
            for name in ("kl_nats", "log_likelihood_difference_nats", "top1_agreement"):
                columns[name] = [getattr(text.quality, name) for text in self.texts]
        return {
            name: {"mean": fmean(values), "standard_deviation": stdev(values)}
            for name, values in columns.items()
            if None not in values
        }

    def to_json(self) -> dict[str, Any]:
        """Settings, layers, totals, quality and texts."""
        return {
            "settings": asdict(self.settings),
            "layers": [layer.to_json() for layer in self.layers],
            "totals": self.totals.to_json()
            | {
                "container_bytes": self.container_bytes,
                "container_header_bytes": self.container_header_bytes,
            },
            "quality": self.quality.to_json() if self.quality else None,
            "texts": [text.to_json() for text in self.texts],
            "spread": self.spread,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Measurement:
        """The inverse of `to_json`; totals are summed again."""
        return cls(
            Settings.from_json(data["settings"]),
            tuple(LayerResult.from_json(layer) for layer in data["layers"]),
            data["totals"].get("container_bytes"),
            Quality.from_json(data.get("quality")),
            tuple(TextResult.from_json(text) for text in data.get("texts", ())),
        )


def over_texts(
    measured: Sequence[Measurement], prompts: Sequence[PromptInfo], quality: Quality | None
) -> Measurement:
    """One setting's measurements of several texts as one; ``quality`` is that of all.

    Raises:
        InputError: settings apply to other entries of one text's cache than of another's.
    """
    if len(measured) == 1:
        return measured[0]
    if len({one.settings.stored for one in measured}) > 1:
        raise InputError(
            "the caches are not quantized alike already, so that settings apply to other entries "
            "of each",
            "measure them one by one",
        )
    containers = [one.container_bytes for one in measured]
    return Measurement(
        measured[0].settings,
        tuple(pooled(same) for same in zip(*(one.layers for one in measured), strict=True)),
        None if None in containers else sum(c for c in containers if c is not None),
        quality,
        tuple(
            TextResult(prompt, one.totals, one.quality)
            for prompt, one in zip(prompts, measured, strict=True)
        ),
    )
