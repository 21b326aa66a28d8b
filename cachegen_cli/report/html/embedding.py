"""A result's JSON inside its page, compressed, and out of it again."""

from __future__ import annotations

import base64
import gzip
import re
import zlib

from cachegen_cli.errors import InputError
from cachegen_cli.results.schema import Result, to_json

_ID = "cachegen-result"
_LARGEST = 1 << 28  # bytes of JSON that a page may unfold to


def embedded(result: Result) -> str:
    """The JSON as a script element that no browser runs."""
    packed = gzip.compress(to_json(result).encode(), mtime=0)
    data = base64.b64encode(packed).decode()
    return f'<script type="application/gzip;base64" id="{_ID}">{data}</script>'


def extracted(page: str) -> str:
    """The JSON of a page that `embedded` is in.

    Raises:
        InputError: it holds none, or a damaged one.
    """
    found = re.search(rf'id="{_ID}">([A-Za-z0-9+/=\s]*)</script>', page)
    if not found:
        raise InputError("the page holds no result", "name one that cachegen wrote")
    try:
        unfold = zlib.decompressobj(wbits=31)
        data = unfold.decompress(base64.b64decode(found[1]), _LARGEST)
        if not unfold.eof:
            raise ValueError("it is cut")
        return data.decode()
    except (ValueError, zlib.error) as error:
        raise InputError("the result in the page is damaged", "write the page again") from error
