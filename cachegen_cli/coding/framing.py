"""The header of a stream."""

from __future__ import annotations

import struct

# version, model, delta, bits, channels, tokens, low, symbols, table bytes, payload bytes
HEADER = struct.Struct("<BBBBIIhHII")
HEADER_BYTES = HEADER.size
