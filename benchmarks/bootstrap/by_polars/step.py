"""The whole step in Polars."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import polars as pl
import pyarrow as pa

from benchmarks.bootstrap import nested
from benchmarks.bootstrap.by_polars import boards, interests, items
from benchmarks.bootstrap.by_polars.attribution import Served, attribute, serve
from benchmarks.bootstrap.by_polars.frames import PLACE, newest, read
from benchmarks.bootstrap.by_polars.requests import cut, sampled
from benchmarks.bootstrap.by_polars.world import World, build
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.contracts import CONDITION_TYPES, TRAIN
from clrflow.data.settings import DataSettings
from clrflow.manifest import Output

LISTS_OF_A_GENERATOR = 10**9


def bootstrap(sources: Mapping[str, str], settings: BootstrapSettings, data: DataSettings, folder: str) -> dict[str, Output]:
    """Read the clean tables at `sources`, write the step's four below `folder`."""
    period_s = max(1, round(settings.granularity_days * 86_400))
    catalogue = read(sources["items"], ["item_id", "created_at"])
    log = cut(sources["events"], catalogue, settings, data, period_s)
    world = build(log, catalogue, sources, settings, period_s)
    known, served = _ask(world, sampled(log.requests, settings.max_candidate_requests))
    known = known.sort("query", "kind", "score", "condition_id", descending=[False, False, True, False])
    known = known.with_columns(index=PLACE.over("query"))
    conditions, targets = attribute(world, known, pl.concat([one.hits for one in served]))
    flat = _flat(world, served, conditions, targets)
    del known, served, conditions, targets
    return nested.write(flat, folder, settings.request.max_history)


def _ask(world: World, held_out: pl.DataFrame) -> tuple[pl.DataFrame, list[Served]]:
    """Known conditions of all queries, and what the generators served."""
    known: list[pl.DataFrame] = []
    served: list[Served] = []
    for kind, name in enumerate(CONDITION_TYPES):
        if kind == 0 or not getattr(world.settings, name).enabled:
            continue
        if name == "interest":
            candidates: Callable[[World, pl.DataFrame], pl.DataFrame] = interests.candidates
            conditions = interests.conditions(world)
        elif name == "item":
            conditions = items.conditions(world)
            candidates = functools.partial(items.candidates, edges=items.co_engagements(world))
        else:
            conditions, candidates = boards.conditions(world), functools.partial(boards.candidates, edges=boards.graph(world))
        known.append(conditions.with_columns(kind=pl.lit(kind, pl.Int64)))
        served.append(serve(world, kind, conditions, candidates, held_out, LISTS_OF_A_GENERATOR * len(served)))
    return pl.concat(known), served


def _flat(world: World, served: list[Served], conditions: pl.DataFrame, targets: pl.DataFrame) -> nested.Flat:
    engaged = world.cut.engagements
    names = pl.col("kind").replace_strict(dict(enumerate(CONDITION_TYPES)), return_dtype=pl.String)
    conditions = conditions.sort("query", "index").with_columns(place=PLACE)
    targets = targets.join(engaged.select("row", "item_id", "action", "timestamp", "position"), on="row")
    targets = targets.sort("query", "position", "condition")
    asked = pl.concat([one.asked for one in served]).join(world.cut.requests.select("query", "request_id"), on="query")
    asked = asked.sort("query", "kind", "score", "condition_id", descending=[False, False, True, False])
    lists = pl.concat([one.lists for one in served]).sort("list", "rank")
    return nested.Flat(
        requests=_arrow(world.cut.requests.select("request_id", "user_id", "requested_at", "split", "first_row", "first_seq")),
        users=_arrow(world.queries.filter(pl.col("query") >= world.num_requests).select("user_id", "first_row", "first_seq")),
        events=_arrow(engaged.select("item_id", "action", "timestamp")),
        conditions=_arrow(conditions.select("query", "score", "role", type=names, id="condition_id")),
        shown=_arrow(_shown(world, conditions)),
        targets=_arrow(targets.drop("row")),
        impressions=_arrow(world.cut.impressions.select("query", "item_id")),
        asked=_arrow(asked.select("request_id", "condition_id", "list", generator=names, condition_type=names)),
        lists=_arrow(lists.select("list", "item_id", "score")),
        statistics=_arrow(_statistics(world)),
    )


def _shown(world: World, conditions: pl.DataFrame) -> pl.DataFrame:
    """What tokens show: an item itself, a board's newest items with the newest last."""
    item, board = (CONDITION_TYPES.index(name) for name in ("item", "board"))
    own = conditions.filter(pl.col("kind") == item).select("place", item_id="condition_id", entry=pl.lit(0, pl.Int64))
    entries = newest(conditions.lazy().filter(pl.col("kind") == board), "state", world.settings.board.recent_items, "entry")
    entries = entries.join(world.entries.lazy(), left_on=["condition_id", "entry"], right_on=["board_id", "entry"])
    on_boards = entries.select("place", "item_id", "entry").collect()
    return pl.concat([own, on_boards]).sort("place", "entry").select("place", "item_id")


def _statistics(world: World) -> pl.DataFrame:
    train = world.cut.engagements.filter(pl.col("split") == TRAIN)
    counted = train.group_by("item_id").agg(num_engagements=pl.len().cast(pl.Int64), first_engaged_at=pl.col("timestamp").min())
    joined = world.items.select("item_id").join(counted, on="item_id", how="left").sort("item_id")
    return joined.with_columns(pl.col("num_engagements").fill_null(0))


def _arrow(rows: pl.DataFrame) -> pa.Table:
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest())
