"""Lists of lists as one flat array and offsets: how Arrow's list columns are read, sliced and padded without a Python loop."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]
Index = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Row r is values[offsets[r] : offsets[r + 1]]."""

    values: Array
    offsets: Index

    @classmethod
    def of(cls, column: pa.ChunkedArray | pa.Array, convert: Any = None) -> Ragged:
        """From a list column; `convert` turns the flat Arrow values into numpy (default: as they are)."""
        flat, offsets = flattened(column)
        return cls(convert(flat) if convert else flat.to_numpy(zero_copy_only=False), offsets)

    @property
    def lengths(self) -> Index:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Index) -> Ragged:
        """The given rows in the given order."""
        places, offsets = self.places(rows)
        return Ragged(self.values[places], offsets)

    def places(self, rows: Index) -> tuple[Index, Index]:
        """Where the values of the given rows lie in the flat array, and the offsets of the rows among them."""
        return _places(self.offsets[rows], self.lengths[rows])

    def first(self, count: int) -> Ragged:
        """Each row cut to its first `count` values."""
        places, offsets = _places(self.offsets[:-1], np.minimum(self.lengths, count))
        return Ragged(self.values[places], offsets)

    def last(self, count: int) -> Ragged:
        """Each row cut to its last `count` values."""
        lengths = np.minimum(self.lengths, count)
        places, offsets = _places(self.offsets[1:] - lengths, lengths)
        return Ragged(self.values[places], offsets)

    def padded(self, width: int, front: bool = False) -> tuple[Array, npt.NDArray[np.bool_]]:
        """[rows, width] with zeros where a row is shorter, and where its values are; `front` pads in front. No row may be longer."""
        lengths = self.lengths
        row = np.repeat(np.arange(len(self)), lengths)
        place = np.arange(len(self.values)) - np.repeat(self.offsets[:-1], lengths)
        if front:
            place = place + np.repeat(width - lengths, lengths)
        out = np.zeros((len(self), width), dtype=self.values.dtype)
        present = np.zeros((len(self), width), dtype=bool)
        out[row, place] = self.values
        present[row, place] = True
        return out, present


def _places(starts: Index, lengths: Index) -> tuple[Index, Index]:
    """Flat places of runs of `lengths` from `starts`, and the offsets of the runs among them."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths), offsets


def flattened(column: pa.ChunkedArray | pa.Array) -> tuple[pa.Array, Index]:
    """A list column as its flat values (still Arrow) and offsets from 0."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    array = pa.concat_arrays(chunks) if chunks else pa.array([], column.type)
    offsets = array.offsets.to_numpy().astype(np.int64)
    return array.flatten(), offsets - offsets[0]
