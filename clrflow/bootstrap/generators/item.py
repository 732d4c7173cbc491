"""Medoids of the clusters of the user's recent items → co-engagement neighbours.

The graph counts how often two items were engaged within a few steps of one user; cosine-normalised, it is the one-step item-item walk. Only
pairs near each other in a user's sequence are counted, so it grows with the events and not with the square of a user's history.
"""

from __future__ import annotations

import ibis
import numpy as np
import pyarrow as pa

from clrflow.bootstrap.engine import Table, best
from clrflow.bootstrap.generators.base import View
from clrflow.bootstrap.generators.medoids import Ints, greedy_medoids
from clrflow.contracts import ITEM
from clrflow.progress import Progress

WINDOW = 5
"""Steps of a user's sequence within which two engagements count as a pair."""
DAMPING = 10
"""Engagements added to both items' counts: a pair seen once between two rare items is no strong tie."""
QUERIES_A_RANGE = 8192
"""Queries whose recent items are fetched from the engine at once."""
BATCH = 512
"""Queries whose medoids are computed at once."""


class ItemGenerator:
    name = "item"
    condition_type = ITEM

    def conditions(self, view: View) -> Table:
        engine, settings = view.engine, view.settings.item
        engine.empty("medoids", {"query_id": "int64", "condition_id": "int64", "score": "float64"})
        recent = view.recent.filter(view.recent.age <= settings.recent_items)
        distinct = recent.group_by(["query_id", "item_id"]).aggregate(age=recent.age.min())
        distinct = engine.keep("recent_distinct", distinct)
        item_ids, vectors = _content_vectors(view)
        total = engine.value(view.queries.query_id.max()) + 1
        with Progress("bootstrap: medoids", total, "queries") as progress:
            for low in range(0, total, QUERIES_A_RANGE):
                part = distinct.filter((distinct.query_id >= low) & (distinct.query_id < low + QUERIES_A_RANGE))
                rows = engine.arrow(part.order_by(["query_id", "age"]))
                queries, items = rows.column("query_id").to_numpy(), rows.column("item_id").to_numpy()
                starts = np.flatnonzero(np.diff(queries, prepend=-1))
                ends = np.append(starts[1:], len(queries))
                for first in range(0, len(starts), BATCH):
                    chunk = slice(first, first + BATCH)
                    engine.append("medoids", _medoids_of(queries, items, starts[chunk], ends[chunk], item_ids, vectors, view))
                progress.advance(min(QUERIES_A_RANGE, total - low))
        engine.drop("recent_distinct")
        medoids = engine.backend.table("medoids")
        return medoids.mutate(state=ibis.literal(0, "int64"))

    def candidates(self, view: View, wanted: Table) -> Table:
        edges = self._edges(view)
        own = view.popularity.select("period", condition_id="item_id", own_total="total")
        lists = view.engine.keep(
            "item_lists", wanted.join(own, ["condition_id", "period"]).select("list_id", "condition_id", "period", "own_total")
        )
        known = lists.select("list_id", "period", item_id="condition_id").join(edges, "item_id")
        known = known.filter(known.since < known["period"])
        counts = known.group_by(["list_id", "other_id"]).aggregate(n=known.n.sum())
        theirs = view.popularity.select("period", other_id="item_id", other_total="total")
        counts = counts.join(lists, "list_id").join(theirs, ["period", "other_id"])
        score = counts.n / ((counts.own_total + DAMPING) * (counts.other_total + DAMPING)).sqrt()
        scored = counts.select("list_id", item_id="other_id", score=score)
        return best(scored, view.settings.item.num_candidates, group_by=["list_id"], order_by=[ibis.desc("score"), "item_id"])

    def shown_items(self, view: View, wanted: Table) -> Table:
        return wanted.select("condition_id", "state", place=ibis.literal(0, "int64"), item_id="condition_id")

    def _edges(self, view: View) -> Table:
        """Pairs of items in both directions: item_id, other_id, since (the later engagement's period), n; computed once."""
        name = "co_engagements"
        if name in view.engine.backend.list_tables():
            return view.engine.backend.table(name)
        learnt = view.learnt
        ahead = learnt.mutate(step=ibis.array(list(range(1, WINDOW + 1))).unnest().cast("int64"))
        ahead = ahead.select("user_id", "item_id", seq=ahead.seq + ahead.step)
        later = learnt.view().select("user_id", "seq", "period", other_id="item_id")
        pairs = ahead.join(later, ["user_id", "seq"])
        pairs = pairs.filter(pairs.item_id != pairs.other_id)
        both = pairs.select("item_id", "other_id", since="period").union(
            pairs.select(item_id="other_id", other_id="item_id", since="period")
        )
        return view.engine.keep(name, both.group_by(["item_id", "other_id", "since"]).aggregate(n=both.count().cast("float64")))


def _content_vectors(view: View) -> tuple[Ints, np.ndarray]:
    """Sorted item ids [N] and unit content vectors [N, D]."""
    table = view.engine.arrow(view.items.select("item_id", "content_embedding").order_by("item_id"))
    ids = table.column("item_id").to_numpy()
    flat = pa.concat_arrays([chunk.flatten() for chunk in table.column("content_embedding").chunks]).to_numpy(zero_copy_only=False)
    vectors = flat.astype(np.float32, copy=False).reshape(len(ids), -1)
    return ids, vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _medoids_of(queries: Ints, items: Ints, starts: Ints, ends: Ints, item_ids: Ints, vectors: np.ndarray, view: View) -> pa.Table:
    length, num_medoids = view.settings.item.recent_items, view.settings.item.max_conditions
    places = starts[:, None] + np.arange(length)[None, :]
    valid = places < ends[:, None]
    chosen = items[np.minimum(places, len(items) - 1)]
    rows = np.minimum(np.searchsorted(item_ids, chosen), len(item_ids) - 1)
    picks, shares = greedy_medoids(vectors[rows], valid, num_medoids)
    found = picks >= 0
    return pa.table(
        {
            "query_id": np.repeat(queries[starts], num_medoids).reshape(found.shape)[found],
            "condition_id": np.take_along_axis(chosen, np.maximum(picks, 0), axis=1)[found],
            "score": shares[found],
        }
    )
