"""How tensors are quantized and estimated."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any

from cachegen_cli.results.picking import pick
from cachegen_cli.results.profile import ProfileInfo


@dataclass(frozen=True)
class PlannedWidths:
    """The code width of every layer's keys and values, as `plan` chose them.

    Attributes:
        source: where the plan was read, or "" where it was just made.
        model: the model that it was made for.
        key_bits, value_bits: one width a cache entry.
        group_size, keep_first, keep_last: what it was made with, where that is known.
    """

    source: str
    model: str
    key_bits: tuple[int, ...]
    value_bits: tuple[int, ...]
    group_size: int | None = None
    keep_first: int | None = None
    keep_last: int | None = None

    @classmethod
    def of_plan(cls, source: str, plan: dict[str, Any]) -> PlannedWidths:
        """The widths of a plan's JSON, of which only the two lists have to be there.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: they are not, or not alike.
        """
        keys, values = plan["key_bits"], plan["value_bits"]
        if not isinstance(keys, list) or not isinstance(values, list):
            raise TypeError
        if not keys or len(keys) != len(values):
            raise ValueError
        made_with = plan.get("settings", {})
        return cls(
            source,
            str(plan.get("model", {}).get("id", "")),
            tuple(keys),
            tuple(values),
            *(made_with.get(name) for name in ("group_size", "keep_first", "keep_last")),
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PlannedWidths:
        """The inverse of `dataclasses.asdict`, after JSON made lists of the widths."""
        lists = {name: tuple(map(int, data[name])) for name in ("key_bits", "value_bits")}
        return pick(cls, data | lists)


@dataclass(frozen=True)
class Settings:
    """How tensors were quantized and estimated.

    Attributes:
        key_bits, value_bits: code widths (of the first layers, where the schedule is "depth"; the
            widest, where it is "plan"); 0 where the scheme has none to choose.
        group_size: tokens a group.
        schedule: "uniform", "depth" for fewer bits in deeper layers, or "plan".
        delta: "auto" (the smaller for each tensor), "on" or "off".
        pooled: one distribution a head instead of one a channel, in the entropy estimate.
        keep_first, keep_last: tokens left in 16 bits.
        plan: the widths, where the schedule is "plan".
        scheme: how values become codes (`schemes.SCHEMES`); some have no code width.
        options: of the scheme, as they were given.
        profile: what was calibrated for the model, where the scheme uses it.
    """

    key_bits: int = 4
    value_bits: int = 4
    group_size: int = 32
    schedule: str = "uniform"
    delta: str = "auto"
    pooled: bool = False
    keep_first: int = 0
    keep_last: int = 0
    plan: PlannedWidths | None = None
    scheme: str = "group"
    options: dict[str, Any] = field(default_factory=dict)
    profile: ProfileInfo | None = None

    @property
    def scheme_text(self) -> str:
        """The scheme as it is typed: "mlx:group_size=32"; a target as the error that met it."""
        met = ("bits", "kl") if "error" in self.options else ()
        shown = {key: value for key, value in self.options.items() if key not in met}
        options = ",".join(f"{key}={value}" for key, value in shown.items())
        return f"{self.scheme}:{options}" if options else self.scheme

    @property
    def arguments(self) -> str:
        """Return the options that make `cachegen` measure this setting of a comparison."""
        both = self.key_bits == self.value_bits
        widths = (
            f" --bits {self.key_bits}"
            if both
            else f" --key-bits {self.key_bits} --value-bits {self.value_bits}"
        )
        profile = f" --profile {shlex.quote(self.profile.file)}" if self.profile else ""
        return f"--scheme {self.scheme_text}{widths if self.key_bits else ''}{profile}"

    @property
    def widths(self) -> str:
        """For people: "4", "K8 V4", "depth 4" or "plan"."""
        if self.plan is not None:
            return "plan"
        both = (
            str(self.key_bits)
            if self.key_bits == self.value_bits
            else f"K{self.key_bits} V{self.value_bits}"
        )
        return both if self.schedule == "uniform" else f"{self.schedule} {both}"

    @property
    def codes(self) -> str:
        """For people: "4 bits", "1 bit", "K8 V4 bits", "depth 4 bits" or "widths of the plan"."""
        if self.plan is not None:
            return "widths of the plan"
        return f"{self.widths} {'bit' if self.widths == '1' else 'bits'}"

    @property
    def label(self) -> str:
        """For people: "4 bits, groups of 32", "mlx, 4 bits" or "cachegen:bins=16"."""
        if self.scheme == "group":
            return f"{self.codes}, groups of {self.options.get('group_size', self.group_size)}"
        return f"{self.scheme_text}, {self.codes}" if self.key_bits else self.scheme_text

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Settings:
        """The inverse of `dataclasses.asdict`; settings of earlier versions lack some."""
        plan, profile = data.get("plan"), data.get("profile")
        own = {
            "plan": PlannedWidths.from_json(plan) if plan else None,
            "profile": pick(ProfileInfo, profile) if profile else None,
        }
        return pick(cls, data | own)
