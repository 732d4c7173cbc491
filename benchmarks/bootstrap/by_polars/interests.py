"""The interest generator: followed and inferred interests → popular and fresh items of the interest."""

from __future__ import annotations

import polars as pl

from benchmarks.bootstrap.by_polars.frames import PLACE, as_of, best, newest, period_of
from benchmarks.bootstrap.by_polars.world import World
from clrflow.bootstrap.generators.interest import LEAST_ITEMS, RECENT_ITEMS


def conditions(world: World) -> pl.DataFrame:
    """query, condition_id, state, score."""
    both = _inferred(world).join(_followed(world), on=["query", "interest_id"], how="full", coalesce=True)
    strength = pl.col("strength").fill_null(0.0)
    scored = both.with_columns(score=strength / (1 + strength) + pl.col("follows").is_not_null().cast(pl.Float64))
    chosen = best(scored, world.settings.interest.max_conditions, "query", ["score", "interest_id"], [True, False])
    return chosen.select("query", pl.col("interest_id").alias("condition_id"), pl.lit(0, pl.Int64).alias("state"), "score").collect()


def _followed(world: World) -> pl.LazyFrame:
    joined = world.queries.lazy().select("query", "user_id", "period").join(world.followed.lazy(), on="user_id")
    return joined.filter(pl.col("since") < pl.col("period")).select("query", "interest_id", follows=pl.lit(True))


def _inferred(world: World) -> pl.LazyFrame:
    recent = world.recent.lazy().filter(pl.col("age") <= RECENT_ITEMS)
    sizes = recent.group_by("query").agg(num_recent=pl.len().cast(pl.Int64))
    carried = recent.join(world.interests.lazy().select("item_id", "interest_id"), on="item_id")
    counts = carried.group_by("query", "period", "interest_id").agg(n=pl.len().cast(pl.Int64), num_items=pl.col("item_id").n_unique())
    counts = counts.filter(pl.col("num_items") >= LEAST_ITEMS).join(sizes, on="query")
    base = world.popularity.lazy().join(world.interests.lazy().select("item_id", "interest_id"), on="item_id")
    base = base.group_by("period", "interest_id").agg(interest_total=pl.col("total").sum())
    base = base.join(world.popularity.lazy().group_by("period").agg(all_total=pl.col("total").sum()), on="period")
    joined = counts.join(base, on=["period", "interest_id"], how="left")
    share = pl.col("n") / pl.col("num_recent")
    rate = (pl.col("interest_total").fill_null(0) + 1) / (pl.col("all_total").fill_null(0) + 1)
    return joined.select("query", "interest_id", strength=share * (share / rate).sqrt())


def candidates(world: World, wanted: pl.DataFrame) -> pl.DataFrame:
    """list, item_id, rank, score."""
    settings, keys = world.settings.interest, ["condition_id", "period"]
    num_fresh = round(settings.num_candidates * settings.fresh_share)
    carried = world.interests.lazy().select("item_id", condition_id="interest_id")
    asked = wanted.lazy().select("list", *keys)
    popular = asked.join(carried.join(world.popularity.lazy(), on="item_id"), on=keys)
    popular = popular.with_columns(all_total=pl.col("total").sum().over("list"))
    popular = best(popular, settings.num_candidates - num_fresh, "list", ["total", "item_id"], [True, False])
    found = popular.select("list", "item_id", "rank", score=pl.col("total") / pl.col("all_total")).collect()
    if num_fresh == 0:
        return found
    born = carried.join(world.items.lazy(), on="item_id").sort("condition_id", "created_at", "item_id")
    born = born.with_columns(number=PLACE.over("condition_id") + 1, period=period_of("created_at", world.period_s))
    births = born.select("condition_id", "item_id", "number", "period").collect()
    there = as_of(births.select("condition_id", "period"), wanted["period"], "condition_id")
    fresh = newest(asked.join(there.lazy(), on=keys), "total", settings.num_candidates, "number")
    fresh = fresh.join(births.lazy().select("condition_id", "item_id", "number"), on=["condition_id", "number"])
    fresh = fresh.join(found.lazy(), on=["list", "item_id"], how="anti")
    fresh = best(fresh, num_fresh, "list", ["number"], [True])
    counts = found.lazy().group_by("list").agg(num_popular=pl.len().cast(pl.Int64))
    fresh = fresh.join(counts, on="list", how="left")
    rank = pl.col("rank") + pl.col("num_popular").fill_null(0)
    return pl.concat([found, fresh.select("list", "item_id", rank, score=pl.lit(0.0)).collect()])
