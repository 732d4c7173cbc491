"""Medoids of the clusters of the user's recent items → co-engagement neighbours.

The graph counts how often two items were engaged within a few steps of one user; cosine-normalised, it is the one-step item-item walk. Only
pairs near each other in a user's sequence are counted, so it grows with the events and not with the square of a user's history.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import ibis
import numpy as np
import pyarrow as pa

from clrflow import storage
from clrflow.bootstrap.engine import BUCKET, Engine, Part, spans_of
from clrflow.bootstrap.expressions import Table, best
from clrflow.bootstrap.generators.base import View, register
from clrflow.bootstrap.generators.medoids import greedy_medoids
from clrflow.bootstrap.generators.vectors import content_vectors, write_content_vectors
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.contracts import ITEM
from clrflow.data.tables import write_file
from clrflow.progress import Progress

WINDOW = 5
"""Steps of a user's sequence within which two engagements count as a pair."""
DAMPING = 10
"""Engagements added to both items' counts: a pair seen once between two rare items is no strong tie."""
QUERIES_AT_ONCE = 8192
"""Queries whose recent items are in memory at once."""
BATCH = 512
"""Queries whose medoids are computed at once."""
PADDING = 10
"""Numbers of recent items are rounded up to multiples of it."""
MEDOIDS = pa.schema([("query_id", pa.int64()), ("condition_id", pa.int64()), ("score", pa.float64())])


@register
class ItemGenerator:
    name = "item"
    condition_type = ITEM

    def enabled(self, settings: BootstrapSettings) -> bool:
        return settings.item.enabled

    def conditions(self, view: View) -> Table:
        engine, settings = view.engine, view.settings.item
        recent = view.recent.filter(view.recent.age <= settings.recent_items)
        distinct = recent.group_by(["query_id", "item_id"]).aggregate(age=recent.age.min())
        distinct = distinct.mutate(**{BUCKET: (distinct.query_id // QUERIES_AT_ONCE).cast("int64")})
        distinct = engine.keep("recent_distinct", distinct, sorted_by=[BUCKET])
        found = engine.arrow(distinct.group_by(BUCKET).aggregate(n=distinct.query_id.nunique()).order_by(BUCKET))
        sizes = dict(zip(found.column(BUCKET).to_pylist(), found.column("n").to_pylist(), strict=True))
        work = Medoids(
            vectors=engine.shared("content_vectors", lambda folder: self._write_vectors(view, folder)),
            folder=engine.scratch("medoids"),
            recent_items=settings.recent_items,
            num_medoids=settings.max_conditions,
        )
        write_file(storage.join(work.folder, "none.parquet"), MEDOIDS.empty_table(), MEDOIDS)  # a table has one file at least
        parts = {"recent": Part(table=distinct, order_by=("query_id", "age", "item_id"))}
        with Progress("bootstrap: medoids", sum(sizes.values()), "queries") as progress:
            for num_queries in engine.each(spans_of(sizes, QUERIES_AT_ONCE), parts, work):
                progress.advance(num_queries)
        engine.drop("recent_distinct")
        medoids = engine.parquet("medoids", work.folder)
        return medoids.mutate(state=ibis.literal(0, "int64"))

    def _write_vectors(self, view: View, folder: str) -> None:
        engaged = view.engine.arrow(view.history.select("item_id").distinct().order_by("item_id"))
        write_content_vectors(view.items_uri, engaged.column("item_id").to_numpy(), folder)

    def candidates(self, view: View, wanted: Table) -> Table:
        own = view.popularity.select("period", condition_id="item_id", own_total="total")
        lists = view.engine.keep(
            "item_lists", wanted.join(own, ["condition_id", "period"]).select("list_id", "condition_id", "period", "own_total")
        )
        known = self._known(view, lists.select("list_id", "period", item_id="condition_id").join(self._edges(view), "item_id"))
        counts = known.group_by(["list_id", "other_id"]).aggregate(n=known.n.sum())
        theirs = view.popularity.select("period", other_id="item_id", other_total="total")
        counts = counts.join(lists, "list_id").join(theirs, ["period", "other_id"])
        score = counts.n / ((counts.own_total + DAMPING) * (counts.other_total + DAMPING)).sqrt()
        scored = counts.select("list_id", item_id="other_id", score=score)
        return best(scored, view.settings.item.num_candidates, group_by=["list_id"], order_by=[ibis.desc("score"), "item_id"])

    def holding(self, view: View, wanted: Table, engaged: Table) -> Table:
        """Lists whose item has one of the engaged ones beside it, however far down."""
        pairs = wanted.join(engaged, "list_id").select("list_id", "period", item_id="condition_id", other_id="item_id")
        near = self._known(view, pairs.join(self._edges(view), ["item_id", "other_id"]))
        return near.select("list_id").distinct()

    def _edges(self, view: View) -> Table:
        """The graph, as far as the newest query of the view may know it; said with a number, so that what lies behind it isn't read."""
        parts = self._graph(view.engine, view.learnt)
        # One part is soon read as a whole; sorting it would take longer than what is left unread.
        order = ("since", "item_id") if len(parts) > 1 else ()
        edges = view.engine.once("co_engagements", lambda: parts, sorted_by=order)
        return edges.filter(edges.since < view.engine.value(view.queries.period.max())) if order else edges

    def _graph(self, engine: Engine, learnt: Table) -> list[Table]:
        """co_engagements of some users after others; what several of them have in common is added up by whoever reads it."""
        num_parts = 1
        if engine.max_engagements is not None:
            num_parts = max(1, -(-int(engine.value(learnt.count())) // engine.max_engagements))
        part = (learnt.user_id % num_parts + num_parts) % num_parts  # of negative ids too
        return [co_engagements(learnt.filter(part == number)) for number in range(num_parts)] if num_parts > 1 else [co_engagements(learnt)]

    def _known(self, view: View, joined: Table) -> Table:
        """Pairs that a list of the `period` may count."""
        joined = joined.filter(joined.since < joined["period"])
        return joined if view.lookback is None else joined.filter(joined.since >= joined["period"] - view.lookback)

    def shown_items(self, view: View, wanted: Table) -> Table:
        return wanted.select("condition_id", "state", place=ibis.literal(0, "int64"), item_id="condition_id")


def co_engagements(learnt: Table) -> Table:
    """Pairs of items in both directions: item_id, other_id, since (the later engagement's period), n (to be summed)."""
    ahead = learnt.mutate(step=ibis.array(list(range(1, WINDOW + 1))).cast("array<int64>").unnest())
    ahead = ahead.select("user_id", "item_id", seq=ahead.seq + ahead.step)
    later = learnt.view().select("user_id", "seq", "period", other_id="item_id")
    pairs = ahead.join(later, ["user_id", "seq"])
    pairs = pairs.filter(pairs.item_id != pairs.other_id)
    # Counted once and mirrored afterwards: half the rows to group.
    pairs = pairs.select(low=ibis.least(pairs.item_id, pairs.other_id), high=ibis.greatest(pairs.item_id, pairs.other_id), since="period")
    counted = pairs.group_by(["low", "high", "since"]).aggregate(n=pairs.count().cast("float64"))
    columns = ["since", "n"]
    return counted.select(*columns, item_id="low", other_id="high").union(counted.select(*columns, item_id="high", other_id="low"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Medoids:
    """Writes MEDOIDS of a span's queries and returns their number; an engine's Work."""

    vectors: str
    """Folder of content_vectors."""
    folder: str
    recent_items: int
    num_medoids: int

    def __call__(self, rows: Mapping[str, pa.Table]) -> int:
        item_ids, vectors = content_vectors(self.vectors)
        queries, items = (rows["recent"].column(name).to_numpy() for name in ("query_id", "item_id"))
        starts = np.flatnonzero(np.diff(queries, prepend=queries[:1] - 1))
        counts = np.diff(np.append(starts, len(queries)))
        # Work grows with the square of the padded length, so queries are padded to a few lengths; which one is a query's own matter, as the
        # last digits of a product hang on its shape and nobody else may change them.
        lengths = np.minimum(-(-counts // PADDING) * PADDING, self.recent_items)
        found = []
        for length in np.unique(lengths).tolist():
            of_length = np.flatnonzero(lengths == length)
            for first in range(0, len(of_length), BATCH):
                chunk = of_length[first : first + BATCH]
                places = starts[chunk, None] + np.arange(length)[None, :]
                valid = np.arange(length)[None, :] < counts[chunk, None]
                chosen = items[np.minimum(places, len(items) - 1)]
                at = np.minimum(np.searchsorted(item_ids, chosen), len(item_ids) - 1)
                picks, shares = greedy_medoids(vectors[at], valid, self.num_medoids)
                picked = picks >= 0
                ids = np.take_along_axis(chosen, np.maximum(picks, 0), axis=1)[picked]
                owners = np.repeat(queries[starts[chunk]], self.num_medoids).reshape(picked.shape)[picked]
                found.append(pa.table({"query_id": owners, "condition_id": ids, "score": shares[picked]}))
        write_file(storage.join(self.folder, f"{queries[0]}.parquet"), pa.concat_tables(found), MEDOIDS)
        return len(starts)
