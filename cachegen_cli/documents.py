"""Whether a text is one of those that something was calibrated on.

Not its name and not its hash tell, since texts are cut and renamed, but runs of tokens:
of all runs of `RUN` tokens those are kept whose hash is divisible by `ONE_IN`, so that the
same passage gives the same hashes wherever it stands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cachegen_cli.device import mx

RUN = 16  # tokens
ONE_IN = 2
_ARRAY = "documents"


@dataclass(frozen=True)
class Documents:
    """Fingerprints of some texts.

    Attributes:
        names: of the texts.
        hashes: [n] of all of them, sorted.
    """

    names: tuple[str, ...]
    hashes: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, texts: Sequence[tuple[str, Sequence[int]]]) -> Documents:
        """Fingerprints of (name, tokens) of texts."""
        hashes = [fingerprint(tokens) for _, tokens in texts]
        found = np.unique(np.concatenate(hashes)) if hashes else np.zeros(0, np.uint32)
        return cls(tuple(name for name, _ in texts), found)

    def share(self, tokens: Sequence[int]) -> float:
        """Which share of a text's runs of tokens occurs in these texts."""
        own = fingerprint(tokens)
        return float(np.isin(own, self.hashes).mean()) if own.size else 0.0

    def to_arrays(self) -> dict[str, mx.array]:
        """What `from_arrays` reads."""
        return {_ARRAY: mx.array(self.hashes)}

    @classmethod
    def from_arrays(cls, names: Sequence[str], arrays: dict[str, Any]) -> Documents:
        """The inverse of `to_arrays`."""
        return cls(tuple(map(str, names)), np.asarray(arrays[_ARRAY]))


def fingerprint(tokens: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Hashes of some of a text's runs of tokens; of the whole text, where it is shorter."""
    data = np.asarray(tokens, "<u4").tobytes()
    starts = range(max(len(tokens) - RUN, 0) + 1)
    hashes = [
        int.from_bytes(hashlib.blake2b(data[4 * i : 4 * (i + RUN)], digest_size=4).digest(), "big")
        for i in starts
    ]
    kept = [one for one in hashes if one % ONE_IN == 0] or hashes[:1]
    return np.unique(np.array(kept, np.uint32))
