"""Verbs that Polars lacks: typed reading, the best rows of a group, ranges of numbered rows, running totals as of a period."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from clrflow.data.tables import read_table

MICROSECONDS = 1_000_000
FAR = 2**62
PLACE = pl.int_range(pl.len(), dtype=pl.Int64)
"""0-based place; `.over(key)` counts within a group, in the order of the rows."""


def read(uri: str, columns: list[str]) -> pl.DataFrame:
    """Columns of a table, times as int64 microseconds."""
    table = read_table(uri, columns)
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.int64()))
    found = pl.from_arrow(table)
    assert isinstance(found, pl.DataFrame)
    return found


def best(rows: pl.LazyFrame, limit: int, group: str, order: list[str], descending: list[bool]) -> pl.LazyFrame:
    """The first `limit` rows of each group with their 1-based `rank`."""
    ordered = rows.sort([group, *order], descending=[False, *descending])
    return ordered.with_columns(rank=PLACE.over(group) + 1).filter(pl.col("rank") <= limit)


def newest(rows: pl.LazyFrame, last: str, limit: int, number: str) -> pl.LazyFrame:
    """A row for each of the newest `limit` numbers up to rows[last], counted from 1."""
    first = pl.max_horizontal(pl.col(last) - limit + 1, pl.lit(1, pl.Int64))
    return rows.with_columns(pl.int_ranges(first, pl.col(last) + 1).alias(number)).explode(number).drop_nulls(number)


def period_of(column: str, period_s: int) -> pl.Expr:
    return pl.col(column) // MICROSECONDS // period_s


def as_of(events: pl.DataFrame, periods: pl.Series, key: str) -> pl.DataFrame:
    """How many rows of `events` (key, period) each key had before each of the periods, where any: period, key, total."""
    steps = events.group_by(key, "period").agg(n=pl.len().cast(pl.Int64)).sort(key, "period")
    steps = steps.with_columns(total=pl.col("n").cum_sum().over(key), until=pl.col("period").shift(-1).over(key).fill_null(FAR))
    wanted = periods.unique().sort()
    low, high = wanted.search_sorted(steps["period"], side="right"), wanted.search_sorted(steps["until"], side="right")
    steps = steps.with_columns(place=pl.int_ranges(pl.lit(low).cast(pl.Int64), pl.lit(high).cast(pl.Int64)))
    steps = steps.select(key, "total", "place").explode("place").drop_nulls("place")
    return steps.select(wanted.gather(steps["place"]).alias("period"), key, "total")
