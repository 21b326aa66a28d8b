"""One kind of a tensor's codes: counted, estimated, and with the symbol model that codes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.adaptive import Adaptive
from cachegen_cli.coding.choosing import chosen
from cachegen_cli.coding.counts import Counts, host_counts
from cachegen_cli.coding.framing import HEADER_BYTES
from cachegen_cli.coding.repeats import Repeats
from cachegen_cli.coding.streams import encode, encode_wide, width_of
from cachegen_cli.device import mx
from cachegen_cli.entropy import Estimates, estimates, wide_estimates
from cachegen_cli.parallel import in_process

STAGES = ("quantize", "count", "code")  # kinds of work whose seconds are told
_FEW = 16  # tokens, which do not tell how far the codes of a channel go
Frequencies = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Plane:
    """One kind of a tensor's codes.

    Attributes:
        coded: uint8, or wider where they may have any size; None where only counts were kept.
        shape: [H, D, coded tokens] of the codes.
        bits: width.
        estimates: entropies by head, without parameters.
        fit: the symbol model that takes the fewest bytes.
        encoded: writes the stream.
        tokens_to_pay: where plain packing won, tokens from which tables would pay, if that can be
            told.
        counts: how often codes occur, where they have a width.
    """

    coded: mx.array | npt.NDArray[Any] | None
    shape: tuple[int, ...]
    bits: int
    estimates: Estimates
    fit: Any
    encoded: Callable[[], bytes]
    tokens_to_pay: int | None = None
    counts: Counts | None = None

    @property
    def codes(self) -> npt.NDArray[Any]:
        """The codes on the host, which not everyone needs; raises RuntimeError if they are gone."""
        if self.coded is None:
            raise RuntimeError("the codes were not kept")
        return np.asarray(self.coded)

    def bias_bits(self, delta: bool, pooled: bool) -> float:
        """Return by how many bits free tables may make an estimate too low.

        Observed frequencies make a distribution's bits too few by (symbols - 1) / (2 ln 2) (Miller
        and Madow, 1955), here for all symbols that codes might be. One token tells nothing.
        """
        heads, dim, tokens = self.shape
        groups, n = (heads, dim * tokens) if pooled else (heads * dim, tokens)
        if tokens < 2:
            return float(groups * n * self.bits)
        symbols = np.full(groups, 2.0**self.bits)
        if self.counts is None and tokens >= _FEW:  # codes of any size, of which channels use few
            rows = self.codes.reshape(groups, n)
            symbols = rows.max(axis=1) - rows.min(axis=1).astype(np.float64) + 1
        if delta:
            symbols = 2 * symbols - 1
        return float(np.minimum((symbols - 1) / (2 * log(2)), n * self.bits).sum())


def narrow_plane(
    codes: Any,
    bits: int,
    counts: Counts | None,
    delta: str,
    expected: Frequencies | None,
    seconds: dict[str, float],
) -> Plane:
    """Of codes below 2^bits.

    Args:
        counts: of the codes, if a GPU counted them.
        delta, expected: as in `choose`.
        seconds: takes what counting and choosing took.
    """
    started = time.perf_counter()
    counts = counts or host_counts(np.asarray(codes), bits)
    counted = time.perf_counter()
    choice = chosen(counts, delta=delta, expected=expected)
    plane = Plane(
        codes,
        (*counts.histograms.raw.shape[:2], counts.tokens),
        bits,
        estimates(counts.histograms, 0),
        choice.fit,
        lambda: in_process(encode, channels_of(np.asarray(codes)), bits, choice),
        choice.tokens_to_pay,
        counts,
    )
    seconds["count"] += counted - started
    seconds["code"] += time.perf_counter() - counted
    return plane


def wide_plane(
    codes: npt.NDArray[np.signedinteger[Any]],
    repeats: Repeats,
    scales: Frequencies | None,
    seconds: dict[str, float],
) -> Plane:
    """Of codes of any size, under the adaptive model; arguments as of `Adaptive`."""
    started = time.perf_counter()
    found = wide_estimates(codes)
    seconds["count"] += time.perf_counter() - started
    channels = channels_of(codes)
    adaptive = Adaptive(channels, repeats, scales)

    def encoded() -> bytes:
        stream = in_process(encode_wide, channels, adaptive)
        # known now: nobody has to measure it any more
        vars(adaptive).setdefault("payload_bytes", len(stream) - HEADER_BYTES)
        return stream

    return Plane(codes, codes.shape, width_of(channels), found, adaptive, encoded)


def channels_of(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Codes [H, D, T] as [channels, T]."""
    return codes.reshape(codes.shape[0] * codes.shape[1], codes.shape[2])
