"""What the step reads of each item, as arrays sorted by item id.

Next: training.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clrflow.data.tables import open_dataset, read_table
from clrflow.errors import BadInput, DataError

Ints = NDArray[np.int64]
ROWS_AT_ONCE = 16_384
"""Rows that exist in float64 at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Items and what is known of them; row i of everything is one item."""

    item_ids: Ints
    """Ascending, unique."""
    embeddings: NDArray[np.float32]
    """Unit vectors [items, dim]; a zero row where the table has one."""
    num_interests: Ints
    """Interests an item has."""
    interests: Ints
    """All items' interests, one item after the other."""
    titles: list[str]
    """The item's id where the table has no title."""

    def __len__(self) -> int:
        return len(self.item_ids)


def read_catalogue(items_uri: str) -> Catalogue:
    """Read the `items` table; DataError where it is empty, BadInput where an embedding is not finite."""
    names = open_dataset(items_uri).schema.names
    columns = ["item_id", "interests", "content_embedding", *(["title"] if "title" in names else [])]
    table = read_table(items_uri, columns=columns).sort_by("item_id").combine_chunks()
    if len(table) == 0:
        raise DataError(f"{items_uri}: the table items has no rows, so there is nothing to give ids to; check data.tables.")
    item_ids = table["item_id"].to_numpy()
    interests = pc.fill_null(pc.list_value_length(table["interests"]), 0).to_numpy().astype(np.int64)
    embeddings = _matrix(table["content_embedding"])
    refuse_not_finite(item_ids, embeddings)
    titles = table["title"] if "title" in names else pa.nulls(len(table), pa.string())
    return Catalogue(
        item_ids=item_ids,
        embeddings=unit_vectors(embeddings),
        num_interests=interests,
        interests=pc.list_flatten(table["interests"]).to_numpy().astype(np.int64),
        titles=pc.coalesce(titles, pc.cast(table["item_id"], pa.string())).to_pylist(),
    )


def read_interest_names(interests_uri: str) -> dict[int, str]:
    """Names by interest id."""
    table = read_table(interests_uri, columns=["interest_id", "name"])
    return dict(zip(table["interest_id"].to_pylist(), table["name"].to_pylist()))


def refuse_not_finite(item_ids: Ints, embeddings: NDArray[np.float32]) -> None:
    """BadInput naming the items whose row is not finite."""
    bad = item_ids[~np.isfinite(embeddings).all(1)]
    if len(bad):
        shown = ", ".join(str(item) for item in bad[:5]) + (", ..." if len(bad) > 5 else "")
        raise BadInput(
            f"items.content_embedding of {len(bad):,} item(s) ({shown}) holds NaN or infinity, which has no nearest code; "
            "mend the embeddings, or set data.bad_embedding=drop to leave such items out."
        )


def unit_vectors(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    """Finite rows scaled to length 1 in float64, zero rows left as they are."""
    scaled = np.empty(embeddings.shape, dtype=np.float32)
    for start in range(0, len(embeddings), ROWS_AT_ONCE):
        rows = embeddings[start : start + ROWS_AT_ONCE].astype(np.float64)
        # Divided by the largest entry first, so that squares neither overflow nor vanish.
        largest = np.abs(rows).max(1, keepdims=True, initial=0)
        rows /= np.where(largest > 0, largest, 1)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        scaled[start : start + ROWS_AT_ONCE] = rows / np.where(lengths > 0, lengths, 1)
    return scaled


def _matrix(column: pa.ChunkedArray) -> NDArray[np.float32]:
    """A column of equally long lists as a matrix."""
    if column.null_count:
        raise DataError(
            f"items.content_embedding has {column.null_count:,} null(s); give each item a vector or set data.bad_embedding=drop."
        )
    widths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(widths) != 1 or not widths[0]:
        raise DataError(f"items.content_embedding has rows of widths {sorted(widths)}; all rows need one width above 0.")
    flat = pc.list_flatten(column).to_numpy()
    return np.asarray(flat, dtype=np.float32).reshape(len(column), widths[0])
