"""How tensors are quantized and estimated."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import Any

from cachegen_cli.results.picking import pick
from cachegen_cli.results.profile import ProfileInfo
from cachegen_cli.wording import counted

USUAL_BITS = 4
GROUPS = {"group": 32, "mlx": 64}
"""The usual group size of each scheme that has groups; these have code widths, too."""
STORED = "stored"
"""What stands in the place of a scheme where a cache holds nothing but codes of its own."""


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
class StoredCodes:
    """Cache entries that were quantized already: settings do not apply to them.

    Attributes:
        codes: what they hold, as "mlx 4 bits, groups of 64".
        entries, of: how many of a cache's entries these are.
    """

    codes: str
    entries: int
    of: int

    @property
    def everywhere(self) -> bool:
        """Return whether no entry is left for settings to apply to."""
        return self.entries == self.of


@dataclass(frozen=True)
class Settings:
    """How tensors were quantized and estimated.

    Attributes:
        key_bits, value_bits: code widths (of the first layers, where the schedule is "depth"; the
            widest, where it is "plan"); 0 where the scheme has none to choose. None: the usual.
        group_size: tokens a group, of mlx channels; 0 where the scheme has no groups. None: what
            the scheme's options say, or the usual.
        schedule: "uniform", "depth" for fewer bits in deeper layers, or "plan".
        delta: "auto" (the smaller for each tensor), "on" or "off".
        pooled: one distribution a head instead of one a channel, in the entropy estimate.
        keep_first, keep_last: tokens left in 16 bits.
        plan: the widths, where the schedule is "plan".
        scheme: how values become codes (`schemes.SCHEMES`); some have no code width.
        options: of the scheme, as they were given.
        profile: what was calibrated for the model, where the scheme uses it.
        stored: the entries that settings do not apply to, of what was measured.
    """

    key_bits: int = None  # type: ignore[assignment]  # None is given, but never kept
    value_bits: int = None  # type: ignore[assignment]
    group_size: int = None  # type: ignore[assignment]
    schedule: str = "uniform"
    delta: str = "auto"
    pooled: bool = False
    keep_first: int = 0
    keep_last: int = 0
    plan: PlannedWidths | None = None
    scheme: str = "group"
    options: dict[str, Any] = field(default_factory=dict)
    profile: ProfileInfo | None = None
    stored: StoredCodes | None = None

    def __post_init__(self) -> None:
        """Put what the scheme takes in the place of what is not given."""
        group_size = GROUPS.get(self.scheme, 0)
        bits = USUAL_BITS if group_size else 0
        usual = {"key_bits": bits, "value_bits": bits,
                 "group_size": self.options.get("group_size", group_size)}  # fmt: skip
        for name, value in usual.items():
            if vars(self)[name] is None:
                object.__setattr__(self, name, value)

    def over(self, stored: StoredCodes | None) -> Settings:
        """Return the settings as far as they apply to a cache with these codes of its own."""
        if stored and stored.everywhere:
            return Settings(delta=self.delta, pooled=self.pooled, scheme=STORED, stored=stored)
        return replace(self, stored=stored)

    @property
    def scheme_text(self) -> str:
        """The scheme as it is typed: "mlx:group_size=32"; a target as the error that met it."""
        left_out = ("group_size", "bits", "kl") if "error" in self.options else ("group_size",)
        shown = {key: value for key, value in self.options.items() if key not in left_out}
        if self.group_size != GROUPS.get(self.scheme, 0):
            shown["group_size"] = self.group_size
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
        """For people: "4 bits, groups of 32", "mlx, 4 bits, groups of 64" or "cachegen:bins=16"."""
        return ", ".join(self.parts(self.codes))

    def parts(self, widths: str = "") -> list[str]:
        """Return for people scheme, widths, groups and, unless it is all, how many entries they
        apply to; without ``widths`` only what the rows of a sweep share.
        """
        stored = self.stored
        if stored and stored.everywhere:
            return [f"the cache's own codes ({stored.codes})"]
        parts = []
        if self.scheme != "group":
            parts.append(self.scheme if self.group_size else self.scheme_text)
        if widths and self.key_bits:
            parts.append(widths)
        if widths and self.group_size:
            parts.append(f"groups of {self.group_size}")
        if stored:
            parts.append(f"for {stored.of - stored.entries} of {counted(stored.of, 'entry')}")
        return parts

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Settings:
        """The inverse of `dataclasses.asdict`; settings of earlier versions lack some."""
        plan, profile, stored = (data.get(name) for name in ("plan", "profile", "stored"))
        own = {
            "plan": PlannedWidths.from_json(plan) if plan else None,
            "profile": pick(ProfileInfo, profile) if profile else None,
            "stored": pick(StoredCodes, stored) if stored else None,
        }
        return pick(cls, data | own)
