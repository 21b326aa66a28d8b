"""Texts whose continuations are read again and again on differently compressed caches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from cachegen_cli.analysis import run_of
from cachegen_cli.captures import Capture
from cachegen_cli.kvcache import LayerKV, split, untouched
from cachegen_cli.measuring import Measured, measure, measure_text, pooled_over
from cachegen_cli.notices import check_applies
from cachegen_cli.progress import Progress
from cachegen_cli.quality import Positions, Reference
from cachegen_cli.quantizing import quantized, restored_layers
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.planning import TensorSensitivity
from cachegen_cli.results.run import Run
from cachegen_cli.results.settings import Settings
from cachegen_cli.units import units


class Trials:
    """Texts with their references, all held at once.

    Attributes:
        done: how often each continuation was read on a compressed cache.
        expected: how often that will be, for a progress bar.
    """

    def __init__(self, texts: Iterable[Capture], stage: str, progress: Progress) -> None:
        """Read every text and its continuation.

        Raises:
            CachegenError: as `capture_texts`, `check_applies` and `Reference` do.
        """
        self.texts: list[tuple[Capture, Reference]] = []
        for text in texts:
            check_applies(text, stage)
            progress("reference", 0, 1)
            self.texts.append((text, Reference(text)))
        self.started = time.perf_counter()
        self.stage, self.progress = stage, progress
        self.n_layers = len(self.texts[0][0].layers)
        self.model, self.stored = self.texts[0][0].model.id, self.texts[0][0].stored
        self.done = self.expected = 0

    def measure(self, settings: Settings) -> list[Measured]:
        """Each text's sizes and quality under a setting."""
        self._count()
        return [measure_text(text, settings, reference) for text, reference in self.texts]

    def positions(self, settings: Settings) -> Positions:
        """Return what a setting does to predictions over all texts; its codes are not coded."""
        self._count()
        return Positions.of(
            [
                reference.compare(kv for both in _restored(text, settings) for kv in both[1])
                for text, reference in self.texts
            ]
        )

    def sizes(self, settings: Settings) -> Measurement:
        """Sizes over all texts, which need no reading."""
        return self.pooled([Measured(measure(text, settings), None, {}) for text, _ in self.texts])

    def pooled(self, texts: Sequence[Measured]) -> Measurement:
        """Each text's sizes and quality as one."""
        return pooled_over(texts, [text.prompt for text, _ in self.texts])

    def each_alone(self, settings: Settings) -> tuple[TensorSensitivity, ...]:
        """KL over all texts with one tensor compressed, for keys and values of every layer."""
        found = []
        # unit by unit, the same one of all texts
        by_unit = zip(*(_each_alone(text, settings) for text, _ in self.texts), strict=True)
        for alone in by_unit:
            for tensor in ("keys", "values"):
                self._count()
                kl = Positions.of(
                    [
                        reference.compare(each[tensor])
                        for each, (_, reference) in zip(alone, self.texts, strict=True)
                    ]
                ).quality()
                layers = alone[0][tensor]
                found.append(
                    TensorSensitivity(
                        layers[0].layer, layers[0].cache, tensor, kl.kl_nats, kl.kl_nats_stderr,
                        tuple(kv.layer for kv in layers), kl.kl_nats_low, kl.kl_nats_high,
                    )
                )  # fmt: skip
        return tuple(found)

    def run(self, settings: Settings, measured: Sequence[Measured]) -> Run:
        """What to say of all texts' run; warnings are those of the setting."""
        run = Run.over(
            [
                run_of(text, self.started, [settings], measured=[one])
                for (text, _), one in zip(self.texts, measured, strict=True)
            ]
        )
        # results of trials show no entropy
        return replace(run, warnings=tuple(w for w in run.warnings if w.code != "short-prompt"))

    def _count(self) -> None:
        self.progress(self.stage, self.done, max(self.expected, self.done + 1))
        self.done += 1


def _restored(text: Capture, settings: Settings) -> Iterator[tuple[LayerKV, list[LayerKV]]]:
    """Yield each unit, and its layers as a decoder would give them back."""
    place = 0
    for unit in units(text.layers, settings, text.fingerprint):
        tensors = quantized(unit, place, len(text.layers), settings, text.context, restored=True)
        compressed = restored_layers(unit, *(tensor.restored() for tensor in tensors))
        place += len(compressed)
        yield unit, compressed


def _each_alone(text: Capture, settings: Settings) -> Iterator[dict[str, list[LayerKV]]]:
    """The layers of each unit with only its keys and with only its values compressed."""
    for unit, compressed in _restored(text, settings):
        plain = [untouched(text.live.cache, kv.layer) if text.live else kv for kv in split(unit)]
        both = list(zip(plain, compressed, strict=True))
        yield {
            "keys": [replace(kv, keys=found.keys) for kv, found in both],
            "values": [replace(kv, values=found.values) for kv, found in both],
        }
