"""Codes to bytes and back: symbol models, the range coder, streams, sections, files."""

from cachegen_cli.coding.choosing import Choice, choose
from cachegen_cli.coding.streams import decode, encode

__all__ = ["Choice", "choose", "decode", "encode"]
