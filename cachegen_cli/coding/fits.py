"""What every symbol model offers once it is fitted to a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from cachegen_cli.coding.statistics import Statistics
from cachegen_cli.coding.tables import TableSet

Symbols = npt.NDArray[np.integer[Any]]


class Fit(Protocol):
    """A model fitted to a tensor."""

    name: ClassVar[str]
    delta: bool
    low: int
    n_symbols: int
    table_bytes: int
    payload_bytes: int

    @property
    def parameters(self) -> int:
        """Numbers that were fitted to the tensor."""

    def tables(self) -> bytes:
        """The tables as they stand in the stream, at most ``table_bytes`` long."""

    def payload(self, symbols: Symbols) -> bytes:
        """Symbols [C, T] from 0 on, coded; at most ``payload_bytes`` long."""


@dataclass
class TableFit:
    """A fit whose tables are a `TableSet`."""

    delta: bool
    low: int
    n_symbols: int
    table_set: TableSet
    payload_bytes: int

    @staticmethod
    def least_bytes(stats: Statistics) -> float:
        """What tables without context take at least, before anything is fitted."""
        return stats.ideal_bytes

    @property
    def table_bytes(self) -> int:
        """Bytes of `tables`, or an upper bound."""
        return self.table_set.predicted_bytes

    @property
    def parameters(self) -> int:
        """Numbers that were fitted: of each table one less than the symbols that it has."""
        rows = self.table_set.rows
        tables = rows[1:] if len(rows) > 1 else rows  # the first predicts the others
        return int(np.count_nonzero(tables) - np.count_nonzero(tables.any(axis=1)))

    def tables(self) -> bytes:
        """What `decode` needs beside the payload."""
        return self.table_set.encode()
