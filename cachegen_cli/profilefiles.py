"""Profiles as files, with a checksum of their own."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from cachegen_cli.device import mx
from cachegen_cli.documents import Documents
from cachegen_cli.errors import InputError, OutputError
from cachegen_cli.output import drafted
from cachegen_cli.profiles import BASES, Profile, Unit, damaged
from cachegen_cli.results.profile import ProfileInfo

SUFFIX = ".safetensors"
FORMAT = "cachegen-profile"
VERSION = "1"
_NO_CHECKSUM = "-" * 64


def save_profile(
    path: Path,
    arrays: dict[str, mx.array],
    *,
    model: str,
    fingerprint: str,
    units: dict[str, tuple[Unit, ...]],
    documents: Documents,
    tokens: int,
) -> Profile:
    """Write a profile, complete or not at all, and open it.

    Raises:
        OutputError: it cannot be written.
    """
    about = {
        "model": model,
        "fingerprint": fingerprint,
        "units": {basis: [asdict(unit) for unit in of] for basis, of in units.items()},
        "texts": documents.names,
        "tokens": tokens,
    }
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "profile": json.dumps(about),
        "checksum": _NO_CHECKSUM,
    }
    with drafted(path, SUFFIX) as draft:
        try:
            mx.save_safetensors(str(draft), arrays | documents.to_arrays(), metadata)
        except RuntimeError as error:  # how MLX says that it cannot write
            raise OutputError(f"'{path}' cannot be written: {error}", "choose another place") from (
                error
            )
        _seal(draft)
    return load_profile(path)


def load_profile(path: Path | str) -> Profile:
    """Open a profile.

    Raises:
        InputError: there is none at the path, or it is damaged.
    """
    path = Path(path)
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(
            f"there is no profile '{path}'", "'cachegen calibrate -o FILE.safetensors' makes one"
        ) from error
    return _load(path, stat.st_mtime_ns, stat.st_size)


def loaded_again(info: ProfileInfo) -> Profile:
    """The profile that settings name.

    Raises:
        InputError: another file is there now.
    """
    found = load_profile(info.file)
    if found.info.sha256 != info.sha256:
        raise InputError(f"profile '{info.file}' is another one now", "do not replace it meanwhile")
    return found


@lru_cache(maxsize=2)
def _load(path: Path, _mtime: int, size: int) -> Profile:
    try:
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        loaded: Any = mx.load(str(path), return_metadata=True)
        arrays, metadata = loaded
        if metadata.get("format") != FORMAT:
            raise InputError(
                f"'{path}' is not a profile", "'cachegen calibrate -o FILE.safetensors' makes one"
            )
        if metadata["version"] != VERSION:
            raise InputError(f"'{path}' is a profile of a later version", "update cachegen")
        sealed = metadata["checksum"].encode()
        if _checksum(data.replace(sealed, _NO_CHECKSUM.encode(), 1)) != metadata["checksum"]:
            raise ValueError("its checksum does not match")
        del data
        about = json.loads(metadata["profile"])
        units = {
            basis: tuple(Unit.from_json(unit) for unit in about["units"][basis]) for basis in BASES
        }
        documents = Documents.from_arrays(about["texts"], arrays)
        info = ProfileInfo(
            str(path), digest, size, str(about["model"]), len(documents.names), int(about["tokens"])
        )
        return Profile(info, str(about["fingerprint"]), units, documents, arrays)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(str(path), error) from error


def _seal(path: Path) -> None:
    """Put the checksum of a file into it, at the place that is kept for it."""
    data = path.read_bytes()
    place = data.index(_NO_CHECKSUM.encode())
    with path.open("r+b") as file:
        file.seek(place)
        file.write(_checksum(data).encode())


def _checksum(data: bytes) -> str:
    """Of a file whose own place for it is empty."""
    return hashlib.sha256(data).hexdigest()
