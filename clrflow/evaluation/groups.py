"""Lists of different lengths, one a row, as two flat arrays: how seen items, relevant items and conditions of requests are held."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Groups:
    """Row i holds `values[offsets[i]:offsets[i + 1]]`."""

    offsets: Array
    """int64 [num_rows + 1]."""
    values: Array
    """[offsets[-1]]."""

    @classmethod
    def of(cls, rows: Array, values: Array, num_rows: int) -> Groups:
        """From pairs (row, value) in any order; the order within a row is kept."""
        order = np.argsort(rows, kind="stable")
        offsets = np.zeros(num_rows + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=num_rows), out=offsets[1:])
        return cls(offsets, values[order])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> Array:
        """Length of each row, int64 [num_rows]."""
        lengths: Array = np.diff(self.offsets)
        return lengths

    @property
    def row_of(self) -> Array:
        """The row of each value, int64 [num_values]."""
        rows: Array = np.repeat(np.arange(len(self)), self.counts)
        return rows

    def take(self, rows: Array) -> Groups:
        """The rows asked for, in that order; a row may be asked for more than once."""
        counts = self.counts[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        flat = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], counts)
        return Groups(offsets, self.values[flat])

    def keep(self, mask: Array) -> Groups:
        """Only the values where `mask` [num_values] holds; rows stay, some may become empty."""
        offsets = np.zeros_like(self.offsets)
        np.cumsum(np.bincount(self.row_of[mask], minlength=len(self)), out=offsets[1:])
        return Groups(offsets, self.values[mask])
