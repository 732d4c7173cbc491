"""What the generators look at; see by_pandas.world."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import polars as pl

from benchmarks.bootstrap.by_polars.frames import FAR, PLACE, as_of, period_of, read
from benchmarks.bootstrap.by_polars.requests import Cut
from clrflow.bootstrap.generators.interest import RECENT_ITEMS
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.contracts import TRAIN


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """Frames by user order or by key; `period` counts periods since 1970."""

    settings: BootstrapSettings
    period_s: int
    cut: Cut
    queries: pl.DataFrame
    """query, user_id, requested_at, period, first_row, first_seq: requests, then users at the end."""
    num_requests: int
    recent: pl.DataFrame
    """query, period, item_id, age."""
    learnt: pl.DataFrame
    popularity: pl.DataFrame
    items: pl.DataFrame
    items_uri: str
    interests: pl.DataFrame
    followed: pl.DataFrame
    entries: pl.DataFrame


def build(cut: Cut, items: pl.DataFrame, sources: Mapping[str, str], settings: BootstrapSettings, period_s: int) -> World:
    engaged = cut.engagements
    queries = _queries(cut, period_s)
    learnt = engaged.filter(pl.col("split") == TRAIN).select("user_id", "item_id", "seq", "period")
    followed = read(sources["user_interests"], ["user_id", "interest_id", "followed_at"])
    followed = followed.group_by("user_id", "interest_id").agg(pl.col("followed_at").min())
    return World(
        settings=settings,
        period_s=period_s,
        cut=cut,
        queries=queries,
        num_requests=len(cut.requests),
        recent=_recent(queries, engaged, max(RECENT_ITEMS, settings.item.recent_items)),
        learnt=learnt,
        popularity=as_of(learnt.select("item_id", "period"), queries["period"], "item_id"),
        items=items,
        items_uri=sources["items"],
        interests=_interests(sources["items"]),
        followed=followed.select("user_id", "interest_id", since=period_of("followed_at", period_s)),
        entries=_entries(sources["boards"], cut, period_s),
    )


def _queries(cut: Cut, period_s: int) -> pl.DataFrame:
    columns = ["user_id", "requested_at", "period", "first_row", "first_seq"]
    newest = cut.engagements.select(pl.col("timestamp").max()).item() + 1
    ends = cut.engagements.group_by("user_id").agg(first_row=pl.col("row").max() + 1, first_seq=pl.len().cast(pl.Int64)).sort("user_id")
    ends = ends.with_columns(requested_at=pl.lit(newest, pl.Int64))
    ends = ends.with_columns(period=period_of("requested_at", period_s) + 1)
    return pl.concat([cut.requests.select(columns), ends.select(columns)]).with_columns(query=PLACE)


def _recent(queries: pl.DataFrame, engaged: pl.DataFrame, length: int) -> pl.DataFrame:
    count = pl.min_horizontal(pl.col("first_seq"), pl.lit(length, pl.Int64))
    rows = queries.lazy().select("query", "period", "first_row", age=pl.int_ranges(1, count + 1)).explode("age").drop_nulls("age").collect()
    return rows.select("query", "period", "age", item_id=engaged["item_id"].gather(rows["first_row"] - rows["age"]))


def _interests(uri: str) -> pl.DataFrame:
    rows = read(uri, ["item_id", "interests"]).explode("interests").rename({"interests": "interest_id"}).drop_nulls("interest_id")
    rows = rows.unique().sort("item_id", "interest_id")
    return rows.with_columns(place=PLACE.over("item_id"), num_interests=pl.len().over("item_id").cast(pl.Int64))


def _entries(uri: str, cut: Cut, period_s: int) -> pl.DataFrame:
    rows = read(uri, ["board_id", "user_id", "item_id", "added_at"])
    first = rows.group_by("board_id", "user_id", "item_id").agg(pl.col("added_at").min())
    if cut.cuts.validation_from is not None:
        first = first.with_columns(learnt=pl.col("added_at") < cut.cuts.validation_from)
    else:
        held_out = cut.requests.filter(pl.col("split") != TRAIN).group_by("user_id").agg(until=pl.col("requested_at").min())
        first = first.join(held_out, on="user_id", how="left")
        first = first.with_columns(learnt=pl.col("until").is_null() | (pl.col("added_at") < pl.col("until"))).drop("until")
    first = first.sort("board_id", "added_at", "item_id").with_columns(entry=PLACE.over("board_id") + 1)
    until = pl.col("added_at").shift(-1).over("board_id").fill_null(FAR)
    return first.with_columns(until=until, period=period_of("added_at", period_s))
