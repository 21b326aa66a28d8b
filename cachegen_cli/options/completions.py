"""What the shell offers for options whose values are names."""

from __future__ import annotations

from pathlib import Path


def models(incomplete: str) -> list[str]:
    """Models in the Hugging Face cache, folders, and .gguf files."""
    from huggingface_hub.constants import HF_HUB_CACHE

    hub = Path(HF_HUB_CACHE)
    names = [path.name.removeprefix("models--") for path in hub.glob("models--*--*")]
    found = [name.replace("--", "/", 1) for name in names]
    start = Path(incomplete).expanduser()
    folder = start if incomplete.endswith("/") else start.parent
    found += [
        f"{path}/" if path.is_dir() else str(path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.is_dir() or path.suffix == ".gguf"
    ]
    return sorted(name for name in found if name.startswith(incomplete))


def schedules(incomplete: str) -> list[str]:
    """The schedules that have names, and plans."""
    from cachegen_cli.schedules import SCHEDULES

    found = [*SCHEDULES, *(str(path) for path in Path().glob("*.json"))]
    return [name for name in found if name.startswith(incomplete)]


def schemes(incomplete: str) -> list[str]:
    """Schemes; after a comma the next of several."""
    from cachegen_cli.schemes import SCHEMES

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in SCHEMES if name.startswith(last)]
