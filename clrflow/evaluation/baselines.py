"""Baselines that a learned model has to beat, fitted on the training span only: item-kNN and ALS of the library `implicit`.

A test request's earlier validation events are part of its query, never of the fit; so is every item the user has seen. Settings are
picked on the validation split by recall@50 + ndcg@10 (the two headline figures) and then ranked once on test. The grids hold the
settings that were best on MovieLens-100k and on Amazon Beauty.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from clrflow.evaluation.groups import Array
from clrflow.evaluation.heldout import Catalogue, HeldOut
from clrflow.evaluation.metrics import per_query
from clrflow.evaluation.ranking import Scorer, rank
from clrflow.evaluation.scorers import by_neighbours, by_vectors, histories_of

PICK_DEPTH = 50

Fitted = Callable[[HeldOut], Scorer]
"""A fitted baseline: given held-out requests, scores them from their seen items."""


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The picked setting of a baseline and how the others did on validation."""

    name: str
    scorer: Fitted
    setting: str
    grid: list[tuple[str, float, float]]
    """(setting, recall@50, ndcg@10) on validation, in the grid's order; empty when nothing was picked."""


def training_matrix(catalogue: Catalogue, user_ids: Array, item_ids: Array) -> sp.csr_matrix:
    """Ones where a user engaged in the training span, float32 [num_users, num_items]; pairs are distinct."""
    users, rows = np.unique(user_ids, return_inverse=True)
    columns = catalogue.places(item_ids, "requests (train)").astype(np.int32)
    ones = np.ones(len(rows), np.float32)
    return sp.csr_matrix((ones, (rows.astype(np.int32), columns)), shape=(len(users), catalogue.num_items))


def fit_baseline(name: str, matrix: sp.csr_matrix, catalogue: Catalogue, validation: HeldOut, *, use_grid: bool, seed: int) -> Baseline:
    """Fit each setting of the baseline's grid, keep the one that is best on validation; the grid's first one when there is no choice."""
    grid = GRIDS[name] if use_grid and len(validation) else GRIDS[name][:1]
    best: tuple[float, str, Fitted] | None = None
    tried = []
    for setting in grid:
        with quiet():
            fitted = FITTERS[name](matrix, seed, **setting)
        text = ", ".join(f"{key} {value}" for key, value in setting.items())
        if len(grid) == 1:
            return Baseline(name, fitted, text, [])
        ranking = rank(fitted(validation), validation.relevant, validation.masked, PICK_DEPTH, catalogue.num_items)
        values = per_query(ranking, (10, PICK_DEPTH))
        recall, ndcg = float(values[f"recall@{PICK_DEPTH}"].mean()), float(values["ndcg@10"].mean())
        tried.append((text, recall, ndcg))
        if best is None or recall + ndcg > best[0]:
            best = (recall + ndcg, text, fitted)
    assert best is not None  # a grid is never empty
    return Baseline(name, best[2], best[1], tried)


def _fit_itemknn(matrix: sp.csr_matrix, seed: int, *, similarity: str, neighbours: int, b: float = 0.0) -> Fitted:
    from implicit.nearest_neighbours import BM25Recommender, CosineRecommender

    model: Any
    if similarity == "cosine":
        model = CosineRecommender(K=neighbours, num_threads=1)
    else:
        model = BM25Recommender(K=neighbours, K1=1.2, B=b, num_threads=1)
    model.fit(matrix, show_progress=False)
    table = model.similarity
    return lambda held: by_neighbours(histories_of(held.seen, matrix.shape[1]), table)


def _fit_als(matrix: sp.csr_matrix, seed: int, *, factors: int, regularization: float, alpha: float) -> Fitted:
    from implicit.als import AlternatingLeastSquares

    model = AlternatingLeastSquares(
        factors=factors, regularization=regularization, alpha=alpha, iterations=15, random_state=seed, num_threads=1, use_gpu=False
    )
    model.fit(matrix, show_progress=False)
    items = np.asarray(model.item_factors, np.float32)

    def scorer(held: HeldOut) -> Scorer:
        histories = histories_of(held.seen, matrix.shape[1])
        with quiet():
            queries = model.recalculate_user(np.arange(len(held)), histories)
        return by_vectors(np.asarray(queries, np.float32).reshape(len(held), -1), items)

    return scorer


FITTERS: dict[str, Callable[..., Fitted]] = {"itemknn": _fit_itemknn, "als": _fit_als}

GRIDS: dict[str, list[dict[str, Any]]] = {
    # The first of each is what a log too large for a grid gets.
    "itemknn": [
        {"similarity": "bm25", "neighbours": 200, "b": 0.75},
        {"similarity": "bm25", "neighbours": 200, "b": 0.2},
        {"similarity": "bm25", "neighbours": 300, "b": 0.75},
        {"similarity": "bm25", "neighbours": 2000, "b": 0.2},
        {"similarity": "cosine", "neighbours": 50},
        {"similarity": "cosine", "neighbours": 200},
        {"similarity": "cosine", "neighbours": 2000},
    ],
    "als": [
        {"factors": 64, "regularization": 0.1, "alpha": 10.0},
        {"factors": 16, "regularization": 0.01, "alpha": 1.0},
        {"factors": 24, "regularization": 0.01, "alpha": 1.0},
        {"factors": 24, "regularization": 1.0, "alpha": 2.0},
        {"factors": 32, "regularization": 3.0, "alpha": 1.0},
        {"factors": 32, "regularization": 10.0, "alpha": 10.0},
        {"factors": 64, "regularization": 10.0, "alpha": 10.0},
        {"factors": 128, "regularization": 0.1, "alpha": 50.0},
    ],
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep implicit from warning and BLAS from starting threads, which on a busy machine spend most of their time waiting."""
    level = logging.getLogger("implicit").level
    logging.getLogger("implicit").setLevel(logging.ERROR)
    try:
        with threadpool_limits(1, "blas"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("implicit").setLevel(level)
