"""Codes to bytes and back: symbol models, the range coder, streams, sections, files."""

from cachegen_cli.coding.streams import Choice, choose, decode, encode

__all__ = ["Choice", "choose", "decode", "encode"]
