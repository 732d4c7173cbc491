"""Where a model is strong and weak: by the item's popularity and age, and by how much the user has done.

Item slices average over relevant (request, item) pairs, user slices over requests. Cold items have no engagement in the training span, so
only their content can bring them up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from clrflow.evaluation.groups import Array
from clrflow.evaluation.heldout import Catalogue, HeldOut
from clrflow.evaluation.metrics import per_query
from clrflow.evaluation.ranking import Ranking

DAY_US = 86_400_000_000
AGES = ((1, "up to a day"), (7, "up to a week"), (30, "up to a month"), (365, "up to a year"), (np.inf, "over a year"))
"""Upper bounds in days of the item's age at the request, with their names."""
NUM_ACTIVITY = 5
"""Groups of requests by the number of items seen before, of about equal size."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """One group of one slicing with the recall of each model in it."""

    name: str
    num: int
    """Relevant pairs (item slices) or requests (user slices) in it."""
    recall: dict[str, float]
    """By model; empty when there is nothing in the slice."""

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "num": self.num, "recall": self.recall}


def popularity_deciles(catalogue: Catalogue) -> Array:
    """Decile of each item by its engagements, int64 [num_items]: 0 cold, 1 the least to 10 the most popular tenth of the warm items.

    Items of equal popularity may be split by place, so that each tenth has its size.
    """
    decile = np.zeros(catalogue.num_items, np.int64)
    warm = np.flatnonzero(catalogue.num_engagements > 0)
    order = warm[np.argsort(catalogue.num_engagements[warm], kind="stable")]
    decile[order] = 1 + np.arange(len(order)) * 10 // max(len(order), 1)
    return decile


def slice_recall(rankings: Mapping[str, Ranking], held: HeldOut, catalogue: Catalogue, k: int) -> dict[str, list[Slice]]:
    """Recall@k of each model by popularity decile (cold first), item age and user activity."""
    hits = {name: (ranking.ranks > 0) & (ranking.ranks <= k) for name, ranking in rankings.items()}
    places, rows = held.relevant.values, held.relevant.row_of
    decile = popularity_deciles(catalogue)[places]
    names = ["cold (no engagement in training)", *(f"decile {number}" for number in range(1, 10)), "decile 10 (most popular)"]
    age_days = (held.requested_at_us[rows] - catalogue.created_at_us[places]) / DAY_US
    age = np.searchsorted([bound for bound, _ in AGES], age_days)
    by_request = {name: per_query(ranking, (k,))[f"recall@{k}"] for name, ranking in rankings.items()}
    num_seen = held.seen.counts
    edges = np.unique(np.quantile(num_seen, np.linspace(0, 1, NUM_ACTIVITY + 1)[1:])) if len(num_seen) else np.zeros(0)
    activity = np.searchsorted(edges, num_seen)
    lows = np.r_[num_seen.min(initial=0), np.floor(edges[:-1]) + 1].astype(int)
    return {
        "popularity": _grouped(hits, decile, names),
        "age": _grouped(hits, age, [name for _, name in AGES]),
        "activity": _grouped(by_request, activity, [f"{low} to {int(high)} seen items" for low, high in zip(lows, edges)]),
    }


def _grouped(values: Mapping[str, Array], group: Array, names: list[str]) -> list[Slice]:
    counts = np.bincount(group, minlength=len(names))
    sums = {name: np.bincount(group, column, minlength=len(names)) for name, column in values.items()}
    return [
        Slice(label, int(counts[at]), {name: float(total[at] / counts[at]) for name, total in sums.items()} if counts[at] else {})
        for at, label in enumerate(names)
    ]
