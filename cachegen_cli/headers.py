"""The header of a .cgkv file: what it says of the cache, its layers and its tensors."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cachegen_cli import __version__
from cachegen_cli.coding.container import (
    PREAMBLE_BYTES,
    VERSION,
    coder_version,
    header_bytes,
)
from cachegen_cli.coding.repeats import anonymous
from cachegen_cli.errors import InputError
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.results.files import PackedFile
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.picking import pick
from cachegen_cli.results.run import Notice
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.sizes import LayerResult, TensorResult
from cachegen_cli.schemes import SCHEMES


def file_header(
    settings: Settings,
    metadata: Mapping[str, str],
    tokens: Sequence[int],
    layers: list[dict[str, Any]],
    with_tokens: bool = True,
    warnings: Sequence[Notice] = (),
) -> dict[str, Any]:
    """The whole header from its layers' entries, with the token ids or only what repeats."""
    repeats = anonymous(tokens) if SCHEMES[settings.scheme].undoes_rope else []
    return {
        "format": "cgkv",
        "version": VERSION,
        "tool": __version__,
        "coder": coder_version(),
        "settings": asdict(settings),
        "metadata": dict(metadata),
        "tokens": list(tokens) if with_tokens else [],
        "repeats": repeats,
        "warnings": [asdict(notice) for notice in warnings],
        "layers": layers,
    }


def layer_entry(kv: LayerKV, keys: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """What the header says of a layer, around its tensors' entries."""
    return {
        "layer": kv.layer,
        "members": [list(member) for member in kv.members],
        "cache": kv.cache,
        "heads": kv.keys.shape[0],
        "tokens": kv.keys.shape[1],
        "tokens_seen": kv.tokens_seen,
        "window": kv.window,
        "sinks": kv.sinks,
        "dtype": str(kv.keys.dtype).removeprefix("mlx.core."),
        "keys": keys,
        "values": values,
    }


def tensor_entry(
    described: dict[str, Any], place: dict[str, int], sizes: TensorResult
) -> dict[str, Any]:
    """What the header says of a tensor: where its section is and how to read it."""
    return place | described | {"sizes": asdict(sizes)}


class PredictedHeader:
    """The header that a file would have, from predicted sizes; its length is an estimate."""

    def __init__(self) -> None:
        self.layers: list[dict[str, Any]] = []
        self.offset = PREAMBLE_BYTES

    @classmethod
    def of(cls, layers: Sequence[dict[str, Any]]) -> PredictedHeader:
        """One of entries that were predicted apart: their sections stand one after another."""
        header = cls()
        for layer in layers:
            for name in ("keys", "values"):
                layer[name]["offset"] = header.offset
                header.offset += layer[name]["length"]
            header.layers.append(layer)
        return header

    def add(self, kv: LayerKV, described: Sequence[dict[str, Any]], result: LayerResult) -> None:
        """Take in a layer, and what its tensors say of themselves."""
        entries = []
        for tensor, sizes in zip(described, (result.keys, result.values), strict=True):
            length = sizes.coded_bytes or 0
            # any checksum has as many digits
            place = {"offset": self.offset, "length": length, "crc32": zlib.crc32(b"%d" % length)}
            self.offset += length
            entries.append(tensor_entry(tensor, place, sizes))
        self.layers.append(layer_entry(kv, *entries))

    def container_bytes(
        self, settings: Settings, metadata: Mapping[str, str], tokens: Sequence[int]
    ) -> int:
        """The file's length: preamble, sections and header."""
        return self.offset + len(header_bytes(file_header(settings, metadata, tokens, self.layers)))


def packed_file(action: str, path: str, header: dict[str, Any], size: int) -> PackedFile:
    """What a header says of a file, as a result; raises InputError where it lacks something."""
    try:
        layers = tuple(
            LayerResult(
                layer["layer"], layer["cache"], layer["tokens"], layer["tokens_seen"],
                pick(TensorResult, layer["keys"]["sizes"]),
                pick(TensorResult, layer["values"]["sizes"]),
                tuple(member for member, _ in layer["members"]) or (layer["layer"],),
            )
            for layer in header["layers"]
        )  # fmt: skip
        measured = Measurement(Settings.from_json(header["settings"]), layers, size)
        measured.totals.to_json()  # whose numbers might be none
        return PackedFile(
            action=action,
            file=path,
            tool={"name": "cachegen", "version": header["tool"], "coder": header["coder"]},
            metadata={str(k): str(v) for k, v in header["metadata"].items()},
            prompt_tokens=len(header.get("tokens") or []),
            measurement=measured,
            warnings=tuple(pick(Notice, notice) for notice in header.get("warnings", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the header of '{path}' lacks what it must hold: {error}", "get the file again"
        ) from error
