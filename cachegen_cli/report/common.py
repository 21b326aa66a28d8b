"""What all rows of a result have in common."""

from __future__ import annotations

from typing import Any


def common_settings(data: dict[str, Any]) -> dict[str, Any]:
    """The settings of a result's JSON; of several rows those that they share."""
    if "settings" in data:
        own: dict[str, Any] = data["settings"]
        return own
    rows = [row["settings"] for row in data.get("rows", ()) if "settings" in row]
    if not rows:
        return {}
    return {key: value for key, value in rows[0].items() if all(r[key] == value for r in rows)}
