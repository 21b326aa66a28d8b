"""Results that were saved, read again."""

from __future__ import annotations

import sys
from pathlib import Path

from cachegen_cli.errors import InputError
from cachegen_cli.results.schema import Result, from_json

_LARGEST = 1 << 30  # bytes; a result of 80 layers and many settings takes a few megabytes


def load_result(path: Path | str) -> Result:
    """The result in a JSON file, or in a page of one; "-" is stdin.

    Raises:
        InputError: there is no such file, or no result in it.
    """
    path = Path(path)
    try:
        if str(path) == "-":
            text = sys.stdin.read()
        elif path.stat().st_size > _LARGEST:
            raise InputError(f"'{path}' is too large for a result", "name the .json of a command")
        else:
            text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}", "check the path") from None
    except UnicodeDecodeError:
        raise InputError(
            f"'{path}' holds no text, so no result", "name the .json of a command"
        ) from None
    try:
        if text.lstrip()[:9].lower() == "<!doctype":
            from cachegen_cli.report.html.embedding import extracted

            text = extracted(text)
        return from_json(text)
    except InputError as error:
        raise InputError(f"'{path}': {error.message}", error.hint) from None
