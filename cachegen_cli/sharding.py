"""One model over several processes: what each measures of its heads or layers, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cachegen_cli.captures import Capture
from cachegen_cli.headers import PredictedHeader
from cachegen_cli.ranks import gathered
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.sizes import LayerResult, joined_heads

TENSOR, PIPELINE = "tensor", "pipeline"


def whole(text: Capture, part: Measurement, header: PredictedHeader) -> Measurement:
    """A text's sizes over all ranks, on each of them; quality is that of the whole model already.

    With the heads of a layer on several ranks, streams are as many, and their container is not
    predicted.
    """
    parts = gathered((part.layers, header.layers))
    if text.sharded == PIPELINE:
        # rank 0 holds the last layers
        layers = tuple(layer for found, _ in reversed(parts) for layer in found)
        entries = [entry for _, found in reversed(parts) for entry in found]
        whole_header = PredictedHeader.of(entries)
        container = whole_header.container_bytes(part.settings, text.metadata, text.tokens)
        return replace(part, layers=layers, container_bytes=container)
    by_layer: Sequence[Sequence[LayerResult]] = list(
        zip(*(found for found, _ in parts), strict=True)
    )
    return replace(part, layers=tuple(map(joined_heads, by_layer)), container_bytes=None)
