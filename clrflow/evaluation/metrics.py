"""Figures of a ranking: one value a request first, so that means, intervals and comparisons all start from the same column.

recall@k = relevant items among the first k / all relevant items; hit@k = 1 if there is one; ndcg@k = DCG of binary gains 1/log2(rank + 1)
divided by the best possible one with min(k, number of relevant items) hits; mrr = 1 / rank of the first hit, 0 beyond the list.
Source of the definitions: Järvelin and Kekäläinen, Cumulated gain-based evaluation of IR techniques, 2002.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clrflow.evaluation.groups import Array
from clrflow.evaluation.ranking import Ranking


def per_query(ranking: Ranking, cutoffs: Sequence[int]) -> dict[str, Array]:
    """Each metric as float64 [num_queries]; NaN for a query without relevant items."""
    rows, num_queries = ranking.relevant.row_of, len(ranking.relevant)
    num_relevant = ranking.relevant.counts
    ranks = ranking.ranks
    gains = np.where(ranks > 0, 1.0 / np.log2(np.maximum(ranks, 1) + 1.0), 0.0)
    values: dict[str, Array] = {}
    with np.errstate(invalid="ignore", divide="ignore"):
        for k in sorted(cutoffs):
            inside = (ranks > 0) & (ranks <= k)
            num_hits = np.bincount(rows[inside], minlength=num_queries)
            values[f"recall@{k}"] = num_hits / num_relevant
            values[f"hit@{k}"] = np.where(num_relevant > 0, (num_hits > 0).astype(float), np.nan)
            ideal = np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))
            gained = np.bincount(rows[inside], weights=gains[inside], minlength=num_queries)
            values[f"ndcg@{k}"] = np.where(num_relevant > 0, gained / ideal[np.clip(num_relevant, 1, k) - 1], np.nan)
        first = np.zeros(num_queries)
        np.maximum.at(first, rows, np.where(ranks > 0, 1.0 / np.maximum(ranks, 1), 0.0))
        values["mrr"] = np.where(num_relevant > 0, first, np.nan)
    return values


def recall_curve(ranking: Ranking, depths: Sequence[int]) -> list[float]:
    """Mean recall at each depth."""
    values = per_query(ranking, depths)
    return [float(np.mean(values[f"recall@{k}"])) for k in sorted(depths)]


def coverage(ranking: Ranking, k: int, num_items: int) -> float:
    """Share of the catalogue that is among the first k of any list."""
    shown = ranking.lists[:, :k]
    return len(np.unique(shown[shown >= 0])) / num_items
