"""What a plan is made for."""

from __future__ import annotations

from math import inf

from cachegen_cli.errors import UsageError
from cachegen_cli.results.candidates import Target


def one_target(kl: float | None, size: int | None, bits: float | None) -> Target:
    """The target that is given.

    Raises:
        UsageError: not one of the three is, or it is no number above 0.
    """
    given = {"kl_nats": kl, "coded_bytes": size, "coded_bits_per_element": bits}
    targets = [Target(figure, value) for figure, value in given.items() if value is not None]
    if len(targets) != 1:
        given_now = f"{len(targets)} are given" if targets else "none is given"
        raise UsageError(
            f"a plan has one target, and {given_now}",
            "give --target-kl, --target-bytes or --target-bits",
        )
    if not 0 < targets[0].value < inf:
        raise UsageError(f"{targets[0].value} is no target", "it is a number above 0")
    return targets[0]
