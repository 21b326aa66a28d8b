"""What is said of packed files, and of coding for real."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.picking import pick
from cachegen_cli.results.run import Notice, Run
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.spans import Entry, Placed


@dataclass(frozen=True)
class PackedFile:
    """The result of ``pack``, ``unpack`` and ``inspect``: what a .cgkv file holds.

    Attributes:
        action: the command.
        file: the .cgkv file.
        tool: versions that wrote it; "coder" is constriction's.
        metadata: strings of the prompt cache.
        prompt_tokens: token ids in the header, 0 if they were left out.
        measurement: settings and sizes by layer; bytes are those in the file.
        warnings: what `pack` warned of.
    """

    kind: ClassVar = "file"
    action: str
    file: str
    tool: dict[str, str]
    metadata: dict[str, str]
    prompt_tokens: int
    measurement: Measurement
    warnings: tuple[Notice, ...] = ()

    @property
    def container_bytes(self) -> int:
        """The file's length."""
        return self.measurement.container_bytes or 0

    @property
    def container_header_bytes(self) -> int:
        """The file less its sections: preamble, header, and what it says of each tensor."""
        return self.measurement.container_header_bytes or 0

    def to_json(self) -> dict[str, Any]:
        """One flat object."""
        own = {
            name: getattr(self, name)
            for name in (
                "action", "file", "tool", "metadata", "prompt_tokens", "container_bytes",
                "container_header_bytes",
            )
        }  # fmt: skip
        warnings = {"warnings": [asdict(notice) for notice in self.warnings]}
        return own | self.measurement.to_json() | warnings

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PackedFile:
        """The inverse of `to_json`."""
        own = {
            "measurement": Measurement.from_json(data),
            "warnings": tuple(pick(Notice, notice) for notice in data.get("warnings", ())),
        }
        return pick(cls, data | own)


@dataclass(frozen=True)
class PackedFiles:
    """The result of ``pack --all`` and ``unpack --all``: the files that were done."""

    kind: ClassVar = "files"
    action: str
    files: tuple[PackedFile, ...]

    def to_json(self) -> dict[str, Any]:
        """The action, and one object a file."""
        return {"action": self.action, "files": [packed.to_json() for packed in self.files]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PackedFiles:
        """The inverse of `to_json`."""
        return cls(data["action"], tuple(PackedFile.from_json(f) for f in data["files"]))


@dataclass(frozen=True)
class LayerCheck(Placed):
    """A layer encoded and decoded: sizes of its sections, and what did not hold."""

    layer: Entry
    cache: str
    symbol_models: str
    predicted_bytes: int
    actual_bytes: int
    failure: str = ""
    layers: tuple[Entry, ...] = ()

    @property
    def verdict(self) -> str:
        """PASS or FAIL."""
        return "FAIL" if self.failure else "PASS"


@dataclass(frozen=True)
class Verification:
    """The result of ``verify``.

    Times are in ``run.timing``: encode_seconds, decode_seconds, and prefill_seconds if a prompt
    was read.
    """

    kind: ClassVar = "verify"
    run: Run
    settings: Settings
    raw_bytes: int
    fixed_bytes: int
    checks: tuple[LayerCheck, ...]

    @cached_property
    def coded_bytes(self) -> int:
        """What the sections came to."""
        return sum(check.actual_bytes for check in self.checks)

    @property
    def passed(self) -> bool:
        """Whether every layer did."""
        return not any(check.failure for check in self.checks)

    @property
    def load_below_bytes_per_second(self) -> float | None:
        """Bandwidth below which reading and decoding beats reading 16 bits; None if none is."""
        saved, seconds = self.raw_bytes - self.coded_bytes, self.run.timing["decode_seconds"]
        return saved / seconds if self.passed and saved > 0 and seconds > 0 else None

    @property
    def load_above_bytes_per_second(self) -> float | None:
        """Bandwidth above which reading and decoding beats prefilling.

        None if it never does, or if no prompt was read, so that prefilling was not measured.
        """
        spare = self.run.timing.get("prefill_seconds", 0.0) - self.run.timing["decode_seconds"]
        return self.coded_bytes / spare if self.passed and spare > 0 else None

    def to_json(self) -> dict[str, Any]:
        """One flat object; bandwidths come from measured times and so stand under timing."""
        data = self.run.to_json() | {
            "settings": asdict(self.settings),
            "raw_bytes": self.raw_bytes,
            "fixed_bytes": self.fixed_bytes,
            "coded_bytes": self.coded_bytes,
            "passed": self.passed,
            "layers": [asdict(check) | {"verdict": check.verdict} for check in self.checks],
        }
        data["timing"] = self.run.timing | {
            "load_below_bytes_per_second": self.load_below_bytes_per_second,
            "load_above_bytes_per_second": self.load_above_bytes_per_second,
        }
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Verification:
        """The inverse of `to_json`."""
        derived = ("load_below_bytes_per_second", "load_above_bytes_per_second")
        timing = {k: v for k, v in data["timing"].items() if k not in derived}
        return cls(
            run=Run.from_json(data | {"timing": timing}),
            settings=Settings.from_json(data["settings"]),
            raw_bytes=data["raw_bytes"],
            fixed_bytes=data["fixed_bytes"],
            checks=tuple(
                pick(LayerCheck, layer | {"layers": tuple(layer.get("layers", ()))})
                for layer in data["layers"]
            ),
        )
