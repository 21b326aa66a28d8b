"""Values that options take."""

from __future__ import annotations

import re
from typing import Any

import typer


class Integers(tuple[int, ...]):
    """Whole numbers that an option lists."""

    @classmethod
    def parse(cls, text: str) -> Integers:
        """Read "2,3,4"."""
        try:
            return cls(int(part) for part in text.split(","))
        except ValueError:
            raise typer.BadParameter(f"'{text}' is not a list like 2,3,4") from None


class Names(tuple[str, ...]):
    """Names that an option lists."""

    @classmethod
    def parse(cls, text: str) -> Names:
        """Read "group,mlx:group_size=32,uniform"; a part with = belongs to the name before."""
        found: list[str] = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            if found and "=" in part and ":" not in part:
                found[-1] += f",{part}"
            else:
                found.append(part)
        return cls(found)


class Size(int):
    """A number of bytes."""

    @classmethod
    def parse(cls, text: str) -> Size:
        """Read "3500000", "3500 kB" or "3.5MB"."""
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)B?\s*", text)
        if not match:
            raise typer.BadParameter(f"'{text}' is not a size like 3500000 or 3.5MB")
        return cls(round(float(match[1]) * 1000 ** " kMGT".index(match[2] or " ")))


class Percent(float):
    """A percentage, as a fraction."""

    @classmethod
    def parse(cls, text: str) -> Percent:
        """Read "15%"; a bare number might be a fraction."""
        match = re.fullmatch(r"\s*(-?\d+(?:\.\d*)?)\s*%\s*", text)
        if not match or float(match[1]) > 100:
            raise typer.BadParameter(f"'{text}' is not a percentage like 15%")
        return cls(float(match[1]) / 100)


def list_option(help: str) -> Any:
    """An option that takes N,N,..."""
    return typer.Option(parser=Integers.parse, metavar="N,N,...", help=help)
