"""The command in a process of its own."""

from __future__ import annotations

import subprocess
import sys

TEXT = "It was a quiet night on the river. " * 3


def process(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "cachegen_cli", *map(str, arguments)],
        capture_output=True, text=True, timeout=300, **options,
    )  # fmt: skip
