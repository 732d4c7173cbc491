"""Serving the generators, and which condition an engagement belongs to; see by_pandas.attribution."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import polars as pl

from benchmarks.bootstrap.by_pandas.attribution import KEYS
from benchmarks.bootstrap.by_polars.boards import sizes_at
from benchmarks.bootstrap.by_polars.frames import MICROSECONDS, PLACE
from benchmarks.bootstrap.by_polars.world import World
from clrflow.bootstrap.attribution import PRIME
from clrflow.contracts import ATTRIBUTED, BOARD, CONDITION_TYPES, FALLBACK, KNOWN, LOGGED, ORACLE, TRAIN, UNCONDITIONAL

LISTS_A_CHUNK = 50_000
"""Candidate lists that exist at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """What one generator answered."""

    asked: pl.DataFrame
    lists: pl.DataFrame
    hits: pl.DataFrame


def serve(
    world: World, kind: int, conditions: pl.DataFrame, candidates: Callable[[World, pl.DataFrame], pl.DataFrame], sampled: pl.DataFrame,
    first_list: int,
) -> Served:  # fmt: skip
    """Ask for the lists of all requests; those of sampled ones are kept and numbered from `first_list` on."""
    keys = ["condition_id", "state", "period"]
    asked = conditions.filter(pl.col("query") < world.num_requests).join(world.queries.select("query", "period"), on="query")
    wanted = asked.select(keys).unique().sort("period", "condition_id", "state").with_columns(list=PLACE + first_list)
    asked = asked.join(wanted, on=keys).select("query", "condition_id", "list", "score")
    held_out = asked.join(sampled, on="query", how="semi")
    engaged = world.cut.engagements.lazy().select("query", "item_id", "row")
    lists = [pl.DataFrame(schema={"list": pl.Int64, "item_id": pl.Int64, "rank": pl.Int64, "score": pl.Float64})]
    hits = [pl.DataFrame(schema={"row": pl.Int64, "condition_id": pl.Int64})]
    for low in range(0, len(wanted), LISTS_A_CHUNK):
        part = wanted.slice(low, LISTS_A_CHUNK)
        listed = candidates(world, part).select("list", "item_id", "rank", "score")
        near = asked.lazy().filter(pl.col("list").is_between(first_list + low, first_list + low + len(part) - 1))
        found = near.join(engaged, on="query").join(listed.lazy(), on=["list", "item_id"])
        hits.append(found.select("row", "condition_id").collect())
        lists.append(listed.join(held_out, on="list", how="semi"))
    kind_column = pl.lit(kind, pl.Int64).alias("kind")
    return Served(asked=held_out.with_columns(kind_column), lists=pl.concat(lists), hits=pl.concat(hits).with_columns(kind_column))


def attribute(world: World, known: pl.DataFrame, hits: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Conditions (KEYS, index, role, state, score) and targets (query, row, condition, weight, generator, source)."""
    order = {name: place for place, name in enumerate(CONDITION_TYPES)}
    engaged = world.cut.engagements.with_columns(kind=pl.col("condition_type").replace_strict(order, default=0, return_dtype=pl.Int64))
    engaged = engaged.with_columns(pl.col("generator").fill_null(""), pl.col("kind").fill_null(0))
    logged = engaged.filter((pl.col("kind") > 0) & pl.col("condition_id").is_not_null())
    logged = logged.select("row", *KEYS, "weight", "generator")
    unlogged = engaged.join(logged, on="row", how="anti")
    hits = hits.join(unlogged.select("row", "query", "weight"), on="row")
    factor = world.settings.fallback_factor
    drawn = unlogged.join(hits, on="row", how="anti") if factor > 0 else unlogged.clear()
    fallback = _draw(world, drawn, salt=1)
    oracle = _draw(world, engaged.filter(pl.col("split") != TRAIN), salt=2)
    added = _added(world, known, logged, fallback, oracle)
    conditions = pl.concat([known.with_columns(role=pl.lit(KNOWN)).select(added.columns), added])

    index = conditions.select(*KEYS, "role", condition="index")
    as_known, as_fallback, as_oracle = (index.filter(pl.col("role") == role) for role in (KNOWN, FALLBACK, ORACLE))
    in_known = logged.join(as_known, on=KEYS)
    appended = logged.join(as_known, on=KEYS, how="anti").join(as_fallback, on=KEYS)
    names = pl.col("kind").replace_strict(dict(enumerate(CONDITION_TYPES)), return_dtype=pl.String)
    hits = hits.with_columns(weight=pl.col("weight") / pl.len().over("row"), generator=names)
    nobody = pl.lit("").alias("generator")
    parts = {
        LOGGED: pl.concat([in_known, appended]),
        ATTRIBUTED: hits.join(as_known, on=KEYS),
        FALLBACK: fallback.with_columns(pl.col("weight") * factor, nobody).join(as_fallback, on=KEYS),
        ORACLE: oracle.with_columns(nobody).join(as_oracle, on=KEYS),
        UNCONDITIONAL: engaged.with_columns(condition=pl.lit(-1, pl.Int64)),
    }
    columns = ["query", "row", "condition", "weight", "generator"]
    return conditions, pl.concat([part.select(*columns, source=pl.lit(source)) for source, part in parts.items()])


def _remainder(number: pl.Expr) -> pl.Expr:
    return (number % PRIME + PRIME) % PRIME


def _draw(world: World, engaged: pl.DataFrame, *, salt: int) -> pl.DataFrame:
    """One interest of each engagement's item: row, KEYS, weight; Lehmer's generator, as in clrflow.bootstrap.attribution."""
    seed = (world.settings.seed * 2 + salt) % PRIME
    mixed = (
        _remainder(pl.col("user_id")) * 48_271
        + _remainder(pl.col("item_id")) * 69_621
        + _remainder(pl.col("timestamp") // MICROSECONDS) * 40_692
    )
    number = (mixed % PRIME * 16_807 + seed * 630_360_016 % PRIME) % PRIME * 48_271 % PRIME
    joined = engaged.select("row", "query", "item_id", "weight", number=number // 1024).join(world.interests, on="item_id")
    joined = joined.filter(pl.col("number") % pl.col("num_interests") == pl.col("place"))
    return joined.select("row", "query", pl.lit(1, pl.Int64).alias("kind"), pl.col("interest_id").alias("condition_id"), "weight")


def _added(world: World, known: pl.DataFrame, logged: pl.DataFrame, fallback: pl.DataFrame, oracle: pl.DataFrame) -> pl.DataFrame:
    """Conditions that targets bring, behind the known ones of their request: KEYS, index, role, state, score."""
    unknown = logged.join(known, on=KEYS, how="anti").select(KEYS)
    added = pl.concat([unknown, fallback.select(KEYS)]).unique().with_columns(role=pl.lit(FALLBACK), role_order=pl.lit(0))
    added = pl.concat([added, oracle.select(KEYS).unique().with_columns(role=pl.lit(ORACLE), role_order=pl.lit(1))])
    added = added.sort("query", "role_order", "kind", "condition_id").with_columns(place=PLACE.over("query"))
    sizes = known.group_by("query").agg(num_known=pl.len().cast(pl.Int64))
    added = added.join(sizes, on="query", how="left").with_columns(index=pl.col("num_known").fill_null(0) + pl.col("place"))
    board = CONDITION_TYPES.index(BOARD)
    states = sizes_at(world, added.filter(pl.col("kind") == board).select("query", "condition_id").unique())
    added = added.join(states.with_columns(kind=pl.lit(board, pl.Int64)), on=KEYS, how="left")
    return added.select(*KEYS, "index", "role", pl.col("state").fill_null(0), score=pl.lit(0.0))
