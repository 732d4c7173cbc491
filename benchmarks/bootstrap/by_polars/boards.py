"""The board generator: a user's active boards → walks from their newest items over the graph of boards and items."""

from __future__ import annotations

import polars as pl

from benchmarks.bootstrap.by_polars.frames import MICROSECONDS, PLACE, as_of, best, newest
from benchmarks.bootstrap.by_polars.world import World
from clrflow.bootstrap.generators.board import BOARDS_AN_ITEM, ITEMS_A_BOARD, UNIT

ACTIVE = (pl.col("added_at") < pl.col("requested_at")) & (pl.col("requested_at") <= pl.col("until"))


def conditions(world: World) -> pl.DataFrame:
    """query, condition_id, state, score."""
    joined = world.queries.lazy().select("query", "user_id", "requested_at").join(world.entries.lazy(), on="user_id").filter(ACTIVE)
    chosen = best(joined, world.settings.board.max_conditions, "query", ["added_at", "board_id"], [True, False])
    days = (pl.col("requested_at") // MICROSECONDS - pl.col("added_at") // MICROSECONDS) / 86_400
    return chosen.select("query", condition_id="board_id", state="entry", score=1 / (1 + days)).collect()


def sizes_at(world: World, asked: pl.DataFrame) -> pl.DataFrame:
    """Entries of boards (condition_id) at a query, where there are any: query, condition_id, state."""
    joined = asked.join(world.queries.select("query", "requested_at"), on="query")
    joined = joined.join(world.entries, left_on="condition_id", right_on="board_id").filter(ACTIVE)
    return joined.select("query", "condition_id", state="entry")


def graph(world: World) -> pl.DataFrame:
    """Entries that may be learnt from, numbered by age in their board and in their item."""
    edges = world.entries.filter("learnt").select("board_id", "item_id", "period", "added_at")
    edges = edges.sort("board_id", "added_at", "item_id").with_columns(in_board=PLACE.over("board_id") + 1)
    return edges.sort("item_id", "added_at", "board_id").with_columns(in_item=PLACE.over("item_id") + 1).drop("added_at")


def candidates(world: World, wanted: pl.DataFrame, edges: pl.DataFrame) -> pl.DataFrame:
    """list, item_id, rank, score."""
    own = world.entries.lazy().select("item_id", "entry", condition_id="board_id")
    asked = wanted.lazy().select("list", "condition_id", "state", "period")
    starts = newest(asked, "state", world.settings.board.recent_items, "entry").join(own, on=["condition_id", "entry"])
    begun = starts.select("list", "item_id", "period").collect()
    origins = begun.select("item_id", "period").unique().with_columns(origin=PLACE)
    starts = begun.lazy().join(origins.lazy(), on=["item_id", "period"]).select("list", "origin")
    visits = starts.join(_steps(origins, edges).lazy(), on="origin")
    visits = visits.group_by("list", pl.col("other_id").alias("item_id")).agg(visits=pl.col("damped").sum())
    mine = asked.join(own, on="condition_id").filter(pl.col("entry") <= pl.col("state"))
    visits = visits.join(mine, on=["list", "item_id"], how="anti")
    visits = visits.join(starts.group_by("list").agg(num_starts=pl.len().cast(pl.Int64)), on="list")
    scored = visits.select("list", "item_id", score=pl.col("visits") / (pl.col("num_starts") * float(UNIT)))
    return best(scored, world.settings.board.num_candidates, "list", ["score", "item_id"], [True, False]).collect(engine="streaming")


def _steps(origins: pl.DataFrame, edges: pl.DataFrame) -> pl.DataFrame:
    """Walks of two steps: origin, other_id and damped, the probability in parts of UNIT over the root of the other item's boards."""
    graph = edges.lazy()
    item_degrees = as_of(edges.select("item_id", "period"), origins["period"], "item_id")
    by_item = origins.lazy().join(item_degrees.lazy(), on=["period", "item_id"])
    by_item = newest(by_item, "total", BOARDS_AN_ITEM, "in_item").join(
        graph.select("item_id", "board_id", "in_item"), on=["item_id", "in_item"]
    )
    fan = pl.min_horizontal(pl.col("total"), pl.lit(BOARDS_AN_ITEM, pl.Int64))
    first = by_item.select("origin", "board_id", "period", fan=fan).collect()
    stops = first.select("board_id", "period").unique().with_columns(stop=PLACE)
    degrees = as_of(edges.select("board_id", "period"), origins["period"], "board_id")
    by_board = newest(stops.lazy().join(degrees.lazy(), on=["period", "board_id"]), "total", ITEMS_A_BOARD, "in_board")
    second = by_board.join(graph.select("board_id", "in_board", other_id="item_id"), on=["board_id", "in_board"])
    second = second.select("stop", "other_id", board_fan=pl.min_horizontal(pl.col("total"), pl.lit(ITEMS_A_BOARD, pl.Int64)))
    paths = first.lazy().join(stops.lazy(), on=["board_id", "period"]).select("origin", "stop", "fan").join(second, on="stop")
    share = (float(UNIT) / (pl.col("fan") * pl.col("board_fan"))).floor()
    ends = paths.group_by("origin", "other_id").agg(probability=share.sum())
    ends = ends.join(origins.lazy().select("origin", "period"), on="origin")
    ends = ends.join(item_degrees.lazy().rename({"item_id": "other_id"}), on=["period", "other_id"])
    return ends.select("origin", "other_id", damped=(pl.col("probability") / pl.col("total").sqrt()).floor()).collect(engine="streaming")
