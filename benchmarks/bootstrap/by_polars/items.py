"""The item generator: medoids of recent items → neighbours in the graph of what users engaged within a few steps."""

from __future__ import annotations

import polars as pl

from benchmarks.bootstrap.by_polars.frames import best
from benchmarks.bootstrap.by_polars.world import World
from benchmarks.bootstrap.medoids import content_vectors, medoids
from clrflow.bootstrap.generators.item import DAMPING, WINDOW


def conditions(world: World) -> pl.DataFrame:
    """query, condition_id, state, score."""
    recent = world.recent.lazy().filter(pl.col("age") <= world.settings.item.recent_items)
    distinct = recent.group_by("query", "item_id").agg(pl.col("age").min()).sort("query", "age").collect()
    ids, vectors = content_vectors(world.items_uri, distinct["item_id"].to_numpy())
    query, item, share = medoids(distinct["query"].to_numpy(), distinct["item_id"].to_numpy(), ids, vectors, world.settings.item)
    return pl.DataFrame({"query": query, "condition_id": item, "score": share}).select(
        "query", "condition_id", pl.lit(0, pl.Int64).alias("state"), "score"
    )


def candidates(world: World, wanted: pl.DataFrame, edges: pl.DataFrame) -> pl.DataFrame:
    """list, item_id, rank, score."""
    own = world.popularity.lazy().select("period", condition_id="item_id", own_total="total")
    lists = wanted.lazy().select("list", "condition_id", "period").join(own, on=["condition_id", "period"])
    pairs = lists.join(edges.lazy(), left_on="condition_id", right_on="item_id").filter(pl.col("since") < pl.col("period"))
    counts = pairs.group_by("list", "other_id").agg(pl.col("n").sum())
    theirs = world.popularity.lazy().select("period", other_id="item_id", other_total="total")
    counts = counts.join(lists, on="list").join(theirs, on=["period", "other_id"])
    product = (pl.col("own_total") + DAMPING) * (pl.col("other_total") + DAMPING)
    scored = counts.select("list", item_id="other_id", score=pl.col("n") / product.sqrt())
    return best(scored, world.settings.item.num_candidates, "list", ["score", "item_id"], [True, False]).collect(engine="streaming")


def co_engagements(world: World) -> pl.DataFrame:
    """Pairs of items in both directions: item_id, other_id, since (the later engagement's period), n."""
    learnt = world.learnt.lazy()
    parts = []
    for step in range(1, WINDOW + 1):
        later = learnt.select(
            pl.col("item_id").shift(-step).over("user_id").alias("other_id"), pl.col("period").shift(-step).over("user_id")
        )
        near = pl.concat([learnt.select("item_id"), later], how="horizontal").drop_nulls()
        parts.append(near.filter(pl.col("item_id") != pl.col("other_id")))
    pairs = pl.concat(parts)
    both = pl.concat(
        [
            pairs.select("item_id", "other_id", since="period"),
            pairs.select(pl.col("other_id").alias("item_id"), pl.col("item_id").alias("other_id"), since="period"),
        ]
    )
    return both.group_by("item_id", "other_id", "since").agg(n=pl.len().cast(pl.Float64)).collect(engine="streaming")
