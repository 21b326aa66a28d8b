"""Bits to tensors: where one more byte buys the most quality.

Every tensor has options of (bytes, predicted KL), and both add up over tensors. The best
allocations lie on the lower convex hulls of the options (Shoham and Gersho, 1988): starting
from the smallest option of every tensor, always the step of steepest descent is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from cachegen_cli.results.measurements import Measurement


class Option(NamedTuple):
    """A tensor at a code width: its coded bytes and the KL that is expected from it alone."""

    bits: int
    coded_bytes: int
    kl_nats: float


class Allocation(NamedTuple):
    """A width for every tensor, and what they come to."""

    bits: tuple[int, ...]
    coded_bytes: int
    kl_nats: float


def predictions(
    alone: Sequence[float], at_bits: int, uniform: Mapping[int, Measurement]
) -> list[dict[int, Option]]:
    """What each tensor costs and the KL that is expected from it alone, at each width.

    The KL at the width where it was measured is scaled by the tensor's error energy there and
    here, and then so that all tensors at one width come to the KL that was measured for it.

    Args:
        alone: KL of each tensor compressed alone, as in `Measurement.tensors`.
        at_bits: the width at which they were measured.
        uniform: the measured quality and sizes of each width for all tensors.
    """
    options: list[dict[int, Option]] = [{} for _ in alone]
    known = uniform[at_bits].tensors
    for bits, measured in uniform.items():
        scaled = [
            kl * (tensor.error_energy / there.error_energy if there.error_energy else 1.0)
            for kl, tensor, there in zip(alone, measured.tensors, known, strict=True)
        ]
        together = measured.quality.kl_nats if measured.quality else 0.0
        factor = together / sum(scaled) if sum(scaled) > 0 else 0.0
        for of_tensor, tensor, kl in zip(options, measured.tensors, scaled, strict=True):
            of_tensor[bits] = Option(bits, tensor.coded_bytes or 0, kl * factor)
    return options


def allocations(options: Sequence[Sequence[Option]]) -> list[Allocation]:
    """From the smallest to the best: bytes grow and KL falls from each to the next.

    Args:
        options: for each tensor, at least one.
    """
    hulls = [hull(of_tensor) for of_tensor in options]
    steps = sorted(
        (_slope(low, high), tensor, place)
        for tensor, points in enumerate(hulls)
        for place, (low, high) in enumerate(pairwise(points))
    )
    places = [0] * len(hulls)
    path = [_allocation(hulls, places)]
    for _, tensor, place in steps:  # a hull's own steps get flatter, so they come in order
        places[tensor] = place + 1
        path.append(_allocation(hulls, places))
    return path


def filled(
    path: Sequence[Allocation], options: Sequence[Mapping[int, Option]], limit: float
) -> tuple[int, ...]:
    """The widths of the last allocation within ``limit`` bytes, with what is left over spent.

    Tensors go on to wider options as long as one fits, the steepest first.
    """
    last = [point for point in path if point.coded_bytes <= limit][-1]
    bits, left = list(last.bits), limit - last.coded_bytes
    while True:
        steps = [
            (_slope(of_tensor[bits[tensor]], option), tensor, option)
            for tensor, of_tensor in enumerate(options)
            for option in of_tensor.values()
            if 0 < option.coded_bytes - of_tensor[bits[tensor]].coded_bytes <= left
            and option.kl_nats < of_tensor[bits[tensor]].kl_nats
        ]
        if not steps:
            return tuple(bits)
        _, tensor, option = min(steps)
        left -= option.coded_bytes - options[tensor][bits[tensor]].coded_bytes
        bits[tensor] = option.bits


def hull(options: Sequence[Option]) -> list[Option]:
    """The lower convex hull of a tensor's options, by bytes; KL falls strictly along it."""
    points: list[Option] = []
    for option in sorted(options, key=lambda o: (o.coded_bytes, o.kl_nats)):
        if points and option.kl_nats >= points[-1].kl_nats:
            continue
        while len(points) > 1 and _slope(points[-2], points[-1]) >= _slope(points[-2], option):
            points.pop()
        points.append(option)
    return points


def _slope(low: Option, high: Option) -> float:
    """KL a byte, negative: the steeper, the more a byte buys."""
    return (high.kl_nats - low.kl_nats) / (high.coded_bytes - low.coded_bytes)


def _allocation(hulls: Sequence[Sequence[Option]], places: Sequence[int]) -> Allocation:
    chosen = [points[place] for points, place in zip(hulls, places, strict=True)]
    return Allocation(
        tuple(option.bits for option in chosen),
        sum(option.coded_bytes for option in chosen),
        sum(option.kl_nats for option in chosen),
    )
