"""Which embedding tables the model has, and which row an item, a semantic-id prefix, an interest or a board takes.

All tables share one width, so that one collection, hence one collective, looks them all up. Row 0 of the id tables is the declared
out-of-vocabulary row: items that no training event touched, interests that the tables don't name. A semantic-id prefix has its own
row while all prefixes of its length fit; longer ones are hashed. Boards are hashed always, as they come and go.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from clrflow.model.settings import ModelSettings

ITEM, INTEREST, BOARD = "item", "interest", "board"
Rows = npt.NDArray[np.int64]


def semantic_table(level: int) -> str:
    """Name of the table of prefixes of `level` codes (from 1)."""
    return f"semantic_{level}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSizes:
    """What decides how many rows each table has."""

    num_items: int
    """Items in the vocabulary, without the out-of-vocabulary row."""
    num_interests: int
    num_levels: int
    num_codes: int

    def rows(self, settings: ModelSettings) -> dict[str, int]:
        """Rows by table name, in the order in which the collection holds them."""
        sizes = {ITEM: self.num_items + 1, INTEREST: self.num_interests + 1, BOARD: settings.board_rows}
        for level in range(1, self.num_levels + 1):
            sizes[semantic_table(level)] = min(self.num_codes**level, settings.semantic_rows)
        return sizes


def mix(values: Rows) -> npt.NDArray[np.uint64]:
    """Spread int64 values over all 64 bits, the same on every machine (a splitmix64 finaliser; ids themselves are often dense)."""
    x = values.astype(np.int64).view(np.uint64).copy()
    with np.errstate(over="ignore"):
        x += np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hashed_rows(values: Rows, num_rows: int) -> Rows:
    """Rows of hashed ids, int64 of the same shape."""
    return (mix(values) % np.uint64(num_rows)).astype(np.int64)


def semantic_prefix_rows(codes: npt.NDArray[np.int32], num_codes: int, max_rows: int) -> Rows:
    """Rows of every prefix of every semantic id.

    codes: [num_items, num_levels], each below num_codes → [num_items, num_levels]; column l is a row of `semantic_table(l + 1)`.
    """
    num_items, num_levels = codes.shape
    rows = np.zeros((num_items, num_levels), dtype=np.int64)
    prefix = np.zeros(num_items, dtype=np.int64)
    for level in range(num_levels):
        with np.errstate(over="ignore"):  # long prefixes wrap; they are hashed anyway
            prefix = prefix * num_codes + codes[:, level]
        exact = num_codes ** (level + 1) <= max_rows
        rows[:, level] = prefix if exact else hashed_rows(prefix + level, max_rows)
    return rows


def vocabulary_rows(ids: Rows, vocabulary: Rows) -> Rows:
    """Row 1 + position in the sorted vocabulary, 0 (out of vocabulary) for ids that it lacks; same shape as ids."""
    if len(vocabulary) == 0:
        return np.zeros(ids.shape, dtype=np.int64)
    place = np.minimum(np.searchsorted(vocabulary, ids), len(vocabulary) - 1)
    return np.where(vocabulary[place] == ids, place + 1, 0)
