"""Whether the model that a file names is the one at hand."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path

from cachegen_cli import gguf
from cachegen_cli.model import BUNDLED_ID, bundled_file
from cachegen_cli.weights import dtype_of, fingerprint, kv_dtype, weights_of


def is_model(name: str, names: Collection[str | None], mark: str) -> bool | None:
    """Tell whether a name stands for the model with some names and a fingerprint.

    Returns:
        None where the names differ and weights cannot be compared: there is no fingerprint, or the
        name stands for nothing on this machine.
    """
    # a folder's name has several spellings; hub ids stay unequal
    if Path(name).absolute() in {Path(other).absolute() for other in names if other}:
        return True
    folder = _folder_of(name) if mark else None
    own = _fingerprint_in(folder) if folder else None
    return None if own is None else own == mark


def _folder_of(name: str) -> Path | None:
    """Return the folder of a model that is on this machine; nothing is converted or downloaded."""
    from mlx_lm.utils import hf_repo_to_path

    try:
        path = (bundled_file() if name == BUNDLED_ID else None) or Path(name).expanduser()
        if path.is_file():
            path = gguf.folder_of(path)
        return path.absolute() if path.is_dir() else hf_repo_to_path(name)
    except Exception:  # a name may be anything, and the hub raises whatever it likes
        return None


@cache
def _fingerprint_in(folder: Path) -> str | None:
    """Return the fingerprint of a folder's model; None where it cannot be loaded."""
    from mlx_lm.utils import load_model

    try:
        network, config = load_model(folder, lazy=True)
        weights = weights_of(network)
        del network  # so that a weight goes once it is hashed
        return fingerprint(config, weights, kv_dtype(dtype_of(weights)))
    except Exception:  # mlx and mlx-lm raise whatever they like
        return None
