"""Dataclasses out of JSON objects."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def pick(cls: type[T], data: dict[str, Any]) -> T:
    """An instance from the keys that are its fields; derived and later keys are left out."""
    names = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    return cls(**{key: value for key, value in data.items() if key in names})
