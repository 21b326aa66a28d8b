"""Words for people that depend on a number."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Return a count with its noun: "1 token", "1,024 tokens", "2 entries"."""
    return f"{n:,} {noun if n == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the noun for several: "tokens", "entries"."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
