"""The command line that makes a result again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

# options that say how a result is shown, and whether a value follows
SHOWING = {
    "--format": True, "-f": True, "--sort": True, "--layers": True, "--top": True,
    "--json": False, "--profile-run": False, "--wide": False, "--quiet": False, "-q": False,
}  # fmt: skip
WRITING = SHOWING | {"--output": True, "-o": True, "--force": False}


def command_of(words: Sequence[str], leave_out: Mapping[str, bool]) -> str:
    """What was typed, quoted for a shell, so that one result has one command however shown.

    Args:
        words: what followed the program's name.
        leave_out: options, and whether a value follows.
    """
    kept = ["cachegen"]
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in leave_out:
            kept.append(word)
        elif leave_out[name] and not equals:
            next(rest, None)
    model = os.environ.get("CACHEGEN_MODEL")
    before = f"CACHEGEN_MODEL={shlex.quote(model)} " if model else ""
    return before + shlex.join(kept)
