"""Ibis expressions that several parts of bootstrapping share; each says the same on every engine."""

from __future__ import annotations

from typing import Any

import ibis

Table = Any
"""An Ibis table expression."""
Column = Any
"""An Ibis column expression."""

DAY_SECONDS = 86_400
REQUEST_BITS = 32
"""A request's number is its day (days since 1970) and, in the lower bits, its place in the day."""
ROW_BITS = 36
"""The same for an engagement: 2^36 of them a day, and all numbers stay below 2^53."""


def seconds_of(timestamp: Column) -> Column:
    """Whole seconds since 1970, rounded down (a cast would round to the nearest and let the end of a day pass for the next one).

    DuckDB's epoch is a fraction, whatever Ibis believes; cutting the timestamp first would go through its calendar, 50 times slower.
    """
    return timestamp.epoch_seconds().cast("float64").floor().cast("int64")


def period_of(timestamp: Column, period_seconds: int) -> Column:
    """Number of the period that holds a time; what happened in period p is known from period p + 1 on."""
    return (seconds_of(timestamp) // period_seconds).cast("int64")


def day_of(timestamp: Column) -> Column:
    """UTC days since 1970."""
    return period_of(timestamp, DAY_SECONDS)


def period_seconds(granularity_days: float) -> int:
    return max(1, round(granularity_days * DAY_SECONDS))


def total(column: Column, over: Any = None) -> Column:
    """The sum of whole numbers as int64.

    Summed as float64, exact below 2^53 in any order: DuckDB widens sums of int64 to 128 bits, which is several times slower and, as Ibis
    believes the type to be int64 already, can't be cast back.
    """
    summed = column.cast("float64").sum()
    return (summed if over is None else summed.over(over)).cast("int64")


def newest(table: Table, last: str, limit: int, number: str) -> Table:
    """One row for each of the newest `limit` numbers up to `table[last]`, counted from 1: joined on equality, where a range would be tried
    against every row of its key."""
    first = ibis.greatest(table[last] - limit + 1, 1)
    return table.mutate(**{number: ibis.range(first, table[last] + 1).cast("array<int64>").unnest()})


def running(order_by: Any, group_by: Any = None) -> Any:
    """The window from the first row of a group up to this one."""
    return ibis.cumulative_window(group_by=group_by, order_by=order_by)


def place_in(order_by: Any, group_by: Any = None) -> Column:
    """0-based place of a row in its group."""
    return ibis.row_number().over(ibis.window(group_by=group_by, order_by=order_by)).cast("int64")


def best(table: Table, limit: int, *, group_by: list[str], order_by: list[Any]) -> Table:
    """The first `limit` rows of each group, with their 1-based `rank`."""
    ranked = table.mutate(rank=place_in(order_by, group_by) + 1)
    return ranked.filter(ranked["rank"] <= limit)


def between(table: Table, key: str, low: int, high: int) -> Table:
    """Rows whose key lies in [low, high)."""
    return table.filter((table[key] >= low) & (table[key] < high))
