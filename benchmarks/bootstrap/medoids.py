"""The item generator's medoids for the peers: clrflow's own function, called on arrays in batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clrflow.bootstrap.generators.medoids import greedy_medoids
from clrflow.bootstrap.nesting import one_array
from clrflow.bootstrap.settings import ItemGeneratorSettings
from clrflow.data.tables import read_table

BATCH = 512
"""Queries whose medoids are computed at once; the step's own size."""


def content_vectors(uri: str, engaged: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Item ids [N], sorted, and unit content vectors float32 [N, D] of the `engaged` items."""
    table = read_table(uri, ["item_id", "content_embedding"], filter=pc.field("item_id").isin(pa.array(np.unique(engaged))))
    ids = table.column("item_id").to_numpy()
    flat = one_array(pa.chunked_array([chunk.flatten() for chunk in table.column("content_embedding").chunks]), pa.float32())
    vectors = flat.to_numpy(zero_copy_only=False).reshape(len(ids), -1)
    if (np.diff(ids) < 0).any():
        order = np.argsort(ids)
        ids, vectors = ids[order], vectors[order]
    return ids, vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def medoids(
    queries: np.ndarray, items: np.ndarray, item_ids: np.ndarray, vectors: np.ndarray, settings: ItemGeneratorSettings
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, item ids and weights of all medoids. `queries` and `items` are distinct pairs by query, newest item first."""
    length = settings.recent_items
    starts = np.flatnonzero(np.diff(queries, prepend=-1))
    ends = np.append(starts[1:], len(queries))
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for first in range(0, len(starts), BATCH):
        begin, end = starts[first : first + BATCH], ends[first : first + BATCH]
        places = begin[:, None] + np.arange(length)[None, :]
        chosen = items[np.minimum(places, len(items) - 1)]
        rows = np.minimum(np.searchsorted(item_ids, chosen), len(item_ids) - 1)
        picks, shares = greedy_medoids(vectors[rows], places < end[:, None], settings.max_conditions)
        real = picks >= 0
        owner = np.repeat(queries[begin], settings.max_conditions).reshape(picks.shape)
        found.append((owner[real], np.take_along_axis(chosen, np.maximum(picks, 0), axis=1)[real], shares[real]))
    return (
        np.concatenate([part[0] for part in found]),
        np.concatenate([part[1] for part in found]),
        np.concatenate([part[2] for part in found]),
    )
