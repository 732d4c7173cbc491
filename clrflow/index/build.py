"""Builds the FAISS index over unit vectors and measures what it finds against exact search.

Inner product on unit vectors is the cosine, for which graphs and cells work; on vectors of different lengths they can lose half the
recall, so lengths are checked first and recall is always measured.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from clrflow.errors import ClrflowError, DataError
from clrflow.index.settings import IndexSettings

Array = np.ndarray[Any, Any]

FEWEST_APPROXIMATE = 1000
"""Items below which every kind falls back to flat."""
_POINTS_A_CELL = 39
"""FAISS wants at least so many training points a cell."""
UNIT_TOLERANCE = 1e-3


def choose_kind(settings: IndexSettings, num_items: int) -> str:
    """flat, hnsw or ivf for a catalogue of this size."""
    if num_items < FEWEST_APPROXIMATE:
        return "flat"
    if settings.kind == "auto":
        return "flat" if num_items < settings.flat_below else "hnsw"
    return settings.kind


def build_index(item_ids: Array, vectors: Array, settings: IndexSettings) -> tuple[Any, str]:
    """An index that answers with the original ids, and its kind.

    item_ids: int64 [num_items], distinct, any sign. vectors: float32 [num_items, dim], of length 1. Raises DataError for an empty
    catalogue or repeated ids, ClrflowError for vectors that aren't of length 1.
    """
    if not len(item_ids):
        raise DataError("item_vectors: the catalogue holds no item, so there is nothing to index; check table items and run train again.")
    if len(np.unique(item_ids)) != len(item_ids):
        repeated = len(item_ids) - len(np.unique(item_ids))
        raise DataError(f"item_vectors: {repeated} item ids appear more than once; run train again on a catalogue with distinct ids.")
    lengths = np.linalg.norm(vectors, axis=1)
    wrong = np.flatnonzero(~(np.abs(lengths - 1) <= UNIT_TOLERANCE))
    if len(wrong):
        raise ClrflowError(
            f"item_vectors: item {item_ids[wrong[0]]} and {len(wrong) - 1} more have no unit vector (length {lengths[wrong[0]]:.4g}); "
            "inner product would not be the cosine: run train again."
        )
    dim, kind = vectors.shape[1], choose_kind(settings, len(item_ids))
    metric = faiss.METRIC_INNER_PRODUCT
    inner: Any
    if kind == "flat":
        inner = faiss.IndexFlatIP(dim)
    elif kind == "hnsw":
        inner = faiss.IndexHNSWFlat(dim, settings.hnsw_links, metric)
        inner.hnsw.efConstruction = settings.hnsw_ef_construction
        inner.hnsw.efSearch = settings.hnsw_ef_search
    else:
        num_cells = max(1, min(int(4 * np.sqrt(len(item_ids))), len(item_ids) // _POINTS_A_CELL))
        inner = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, num_cells, metric)
        inner.train(vectors)
        inner.nprobe = min(settings.ivf_probes, num_cells)
    assert inner.metric_type == metric  # a library default that changes must not go unnoticed
    index = faiss.IndexIDMap2(inner)
    index.add_with_ids(np.ascontiguousarray(vectors, np.float32), np.ascontiguousarray(item_ids, np.int64))
    return index, kind


def recall_against_exact(index: Any, vectors: Array, queries: Array, k: int) -> float:
    """Share of the true k best that the index finds, mean over queries float32 [q, dim].

    An answer counts as true when its score reaches the true k-th best one: items of equal score may stand in for each other.
    """
    k = min(k, len(vectors))
    exact, _ = faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
    found, _ = index.search(queries, k)
    return float((found >= exact[:, -1:] - 1e-6).mean())
