"""Texts that a model reads: which they are, and how much of each is its continuation."""

from __future__ import annotations

from collections.abc import Sequence

from cachegen_cli.errors import InputError
from cachegen_cli.prompt import Prompt
from cachegen_cli.wording import counted

CONTINUATION = 256  # tokens, of a text of twice as many or more
SHORTEST_CONTINUATION = 2  # its first token is read, its second predicted
SAMPLE_CONTEXT = 896  # tokens of the long sample before its continuation

Texts = str | Prompt | Sequence[str | Prompt] | None
"""A text, several, or None for the bundled sample."""


def texts_of(prompts: Texts) -> list[Prompt]:
    """Texts as prompts.

    Raises:
        InputError: there is none, or one that is no text (see `Prompt`).
    """
    texts = [
        Prompt(text) if isinstance(text, str) else text
        for text in ([prompts] if isinstance(prompts, str | Prompt) else prompts or [])
    ]
    if not texts:
        raise InputError("there is no text", "give one or more")
    return texts


def continuation_of(text: Prompt, tokens: int, asked: int | None) -> int:
    """How many of a text's last tokens are its continuation; ``asked`` as in `capture_texts`.

    Raises:
        InputError: the text is too short.
    """
    if asked == 0:
        return 0
    found = min(CONTINUATION, tokens // 2) if asked is None else asked
    if found < SHORTEST_CONTINUATION or found > tokens // 2:
        raise InputError(
            f"{text.source} has {counted(tokens, 'token')}, too few for a continuation of "
            f"{max(found, SHORTEST_CONTINUATION)}, which may be half of it at most",
            "give a longer text"
            + (f", or --continuation {tokens // 2}" if asked and tokens >= 4 else ""),
        )
    return found
