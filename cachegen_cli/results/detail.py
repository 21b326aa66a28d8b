"""What `--detail` adds to a tensor: how often codes occur, and where the bits are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Detail:
    """Codes of a tensor; of a scheme with several kinds, histogram of the first.

    Attributes:
        lowest_code: what the first count is of.
        codes_per_count: how many neighbouring codes a count is of; 1 unless they are many.
        code_counts: how often codes occur.
        group_channels: channels of each group, head after head; the last may have fewer.
        group_bits_per_element: ideal bits an element of each group's codes, with one
            distribution a channel and no tables or parameters.
    """

    lowest_code: int
    codes_per_count: int
    code_counts: tuple[int, ...]
    group_channels: int
    group_bits_per_element: tuple[float, ...]

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> Detail | None:
        """The inverse of `dataclasses.asdict`."""
        if data is None:
            return None
        lists = {name: tuple(data[name]) for name in ("code_counts", "group_bits_per_element")}
        return cls(data["lowest_code"], data["codes_per_count"], **lists,
                   group_channels=data["group_channels"])  # fmt: skip


def pooled_detail(details: Sequence[Detail | None], elements: Sequence[int]) -> Detail | None:
    """The same tensor over several texts; None where they cannot be added up.

    Args:
        elements: of each text's tensor.
    """
    known = [detail for detail in details if detail is not None]
    if len(known) < len(details) or not known:
        return None
    first, n = known[0], sum(elements)
    if any(d.codes_per_count != 1 or d.group_channels != first.group_channels for d in known):
        return None
    low = min(d.lowest_code for d in known)
    counts = [0] * (max(d.lowest_code + len(d.code_counts) for d in known) - low)
    for detail in known:
        for place, count in enumerate(detail.code_counts, detail.lowest_code - low):
            counts[place] += count
    columns = zip(*(d.group_bits_per_element for d in known), strict=True)
    bits = tuple(
        sum(b * size for b, size in zip(column, elements, strict=True)) / n if n else 0.0
        for column in columns
    )
    return Detail(low, 1, tuple(counts), first.group_channels, bits)
