"""The models of the harness behind one interface: query rows in, scores of the whole catalogue out (ranking.Scorer)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import scipy.sparse as sp

from clrflow.data.tables import read_table
from clrflow.errors import ClrflowError
from clrflow.evaluation.groups import Array, Groups
from clrflow.evaluation.ranking import Scorer

UNIT_TOLERANCE = 1e-3
"""How far a vector's length may be from 1: vectors that went through float16 or int8 are within it."""


def vectors_of(column: pa.ChunkedArray, what: str) -> Array:
    """A column of vectors as float32 [n, dim]; refuses nulls, NaN and vectors that aren't of length 1."""
    if column.null_count:
        raise ClrflowError(f"{what}: {column.null_count} vectors are null; run train again.")
    dim = column.type.list_size
    flat = column.combine_chunks().flatten() if len(column) else pa.array([], pa.float32())
    vectors = flat.to_numpy(zero_copy_only=False).astype(np.float32, copy=False).reshape(-1, dim)
    lengths = np.linalg.norm(vectors, axis=1)
    wrong = np.flatnonzero(~(np.abs(lengths - 1) <= UNIT_TOLERANCE))
    if len(wrong):
        raise ClrflowError(
            f"{what}: {len(wrong)} of {len(vectors)} vectors are not unit vectors, e.g. row {wrong[0]} of length {lengths[wrong[0]]:.4g}; "
            "the training diverged or its output is damaged: lower the learning rates and run train again."
        )
    return vectors


def load_item_vectors(uri: str, item_ids: Array) -> Array:
    """Vectors of all items of the catalogue, float32 [num_items, dim], in its order."""
    table = read_table(uri).sort_by("item_id")
    found = table["item_id"].to_numpy()
    if not np.array_equal(found, item_ids):
        missing = np.setdiff1d(item_ids, found)
        raise ClrflowError(
            f"{uri}: holds vectors of {len(found)} items, the catalogue has {len(item_ids)}"
            + (f", e.g. none of item {missing[0]}" if len(missing) else "")
            + "; run train again on this catalogue."
        )
    return vectors_of(table["vector"], uri)


def load_query_vectors(uri: str, request_ids: Array, indices: Array) -> Array:
    """Vectors of (request, condition index) pairs, float32 [num_pairs, dim]; index -1 is the unconditional query.

    Memory: the vectors of the requests named, with all their conditions if any index is asked for.
    """
    known = np.unique(request_ids)
    wanted = ds.field("request_id").isin(pa.array(known))
    if len(indices) and (indices == -1).all():
        wanted = wanted & (ds.field("condition") == -1)
    table = read_table(uri, filter=wanted)
    # One number for a pair: request ids are too large to leave room for a condition in 64 bits, their places aren't.
    key = (np.searchsorted(known, table["request_id"].to_numpy()) << 20) + table["condition"].to_numpy() + 1
    order = np.argsort(key)
    asked = (np.searchsorted(known, request_ids) << 20) + indices + 1
    at = np.minimum(np.searchsorted(key[order], asked), max(len(key) - 1, 0))
    absent = np.flatnonzero(key[order][at] != asked) if len(key) else np.arange(len(asked))
    if len(absent):
        raise ClrflowError(
            f"{uri}: {len(absent)} of {len(asked)} query vectors are missing, e.g. request {request_ids[absent[0]]} condition "
            f"{indices[absent[0]]}; run train again on these requests."
        )
    return vectors_of(table.take(pa.array(order[at]))["vector"], uri)


def by_vectors(queries: Array, items: Array) -> Scorer:
    """Inner products of query vectors [q, dim] with item vectors [num_items, dim]."""

    def score(rows: Array) -> Array:
        product: Array = queries[rows] @ items.T
        return product

    return score


def by_popularity(num_engagements: Array) -> Scorer:
    """The same scores for everybody: engagements in the training span. float64, as float32 ties counts above 2**24."""
    counts = num_engagements.astype(np.float64)

    def score(rows: Array) -> Array:
        return np.tile(counts, (len(rows), 1))

    return score


def by_neighbours(histories: sp.csr_matrix, similarity: sp.csr_matrix) -> Scorer:
    """Sums of similarities to the items of the history; histories [q, num_items], similarity [num_items, num_items]."""

    def score(rows: Array) -> Array:
        dense: Array = (histories[rows] @ similarity).toarray().astype(np.float32)
        return dense

    return score


def histories_of(seen: Groups, num_items: int) -> sp.csr_matrix:
    """Seen items as a matrix of ones, float32 [num_requests, num_items]."""
    ones = np.ones(len(seen.values), np.float32)
    return sp.csr_matrix((ones, seen.values.astype(np.int32), seen.offsets), shape=(len(seen), num_items))


def round_robin(row: Array, order: Array, position: Array, item: Array, num_rows: int, num_items: int, depth: int) -> Array:
    """Merge lists of each row by turns: first places of all lists by `order`, then second places, ...; duplicates keep their first place.

    row, order, position, item: one entry a list element, int64. Returns int32 [num_rows, depth], -1 behind the last item.
    """
    by_list = np.lexsort((position, order, row))
    row, order, item = row[by_list], order[by_list], item[by_list]
    # Places are counted anew within each list, as masked items may have left gaps.
    starts = np.flatnonzero(np.r_[True, (row[1:] != row[:-1]) | (order[1:] != order[:-1])]) if len(row) else np.zeros(0, np.int64)
    turn = np.arange(len(row)) - np.repeat(starts, np.diff(np.r_[starts, len(row)]))
    by_turn = np.lexsort((order, turn, row))
    row, item = row[by_turn], item[by_turn]
    _, first = np.unique(row * num_items + item, return_index=True)
    first.sort()
    row, item = row[first], item[first]
    place = np.arange(len(row)) - np.searchsorted(row, row)
    inside = place < depth
    lists = np.full((num_rows, depth), -1, np.int32)
    lists[row[inside], place[inside]] = item[inside]
    return lists


def without(row: Array, item: Array, masked: Groups, num_items: int) -> Array:
    """Mask of the pairs that aren't among the masked items of their row, bool [num_pairs]."""
    keep: Array = ~np.isin(row * num_items + item, masked.row_of * num_items + masked.values)
    return keep


def flatten_lists(lists: Array, rows: Sequence[int] | Array) -> tuple[Array, Array, Array]:
    """Lists [q, depth] as entries: (row that the list belongs to, position, item), without the padding."""
    listed = lists >= 0
    row = np.broadcast_to(np.asarray(rows)[:, None], lists.shape)[listed]
    position = np.broadcast_to(np.arange(lists.shape[1]), lists.shape)[listed]
    return row.astype(np.int64), position.astype(np.int64), lists[listed].astype(np.int64)
