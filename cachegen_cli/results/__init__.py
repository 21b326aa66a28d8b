"""What a run found, as frozen dataclasses of raw numbers, to and from JSON.

Bytes are integers, ratios fractions of 1. Derived numbers stand in the JSON too, and are
derived again when it is read. Knows neither MLX nor a terminal.
"""
