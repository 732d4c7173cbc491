"""The engine that evaluates this step's Ibis expressions: DuckDB in this process, bounded in memory, spilling to a scratch folder.

Expressions stay free of what only DuckDB can say, so another Ibis backend can take its place: it needs the same few verbs.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import ibis
import pyarrow as pa

from clrflow.data import tables

Table = Any
"""An Ibis table expression."""
Column = Any
"""An Ibis column expression."""


class Engine:
    """Registers tables, keeps intermediate results and hands results over as Arrow; a context manager."""

    def __init__(self, *, memory_limit: str, scratch: Path | None = None):
        """`scratch` is the folder below which spilled data lies while it runs; None is the system's temporary folder."""
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True)
            for leftover in scratch.glob(".duckdb-*"):  # of a killed attempt; the step holds its folder alone
                shutil.rmtree(leftover, ignore_errors=True)
        self.folder = Path(tempfile.mkdtemp(prefix=".duckdb-", dir=scratch))
        self.backend: Any = ibis.duckdb.connect(memory_limit=memory_limit, temp_directory=str(self.folder))
        self.backend.raw_sql("SET TimeZone = 'UTC'")
        self.backend.raw_sql("SET enable_progress_bar = false")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.backend.disconnect()
        shutil.rmtree(self.folder, ignore_errors=True)

    def parquet(self, name: str, uri: str) -> Table:
        """A cleaned table where it lies, as an expression."""
        tables.register(self.backend.con, name, uri)
        return self.backend.table(name)

    def keep(self, name: str, expression: Table) -> Table:
        """Compute an expression once; later uses read the result. A name that is taken is replaced."""
        return self.backend.create_table(name, expression, temp=True, overwrite=True)

    def load(self, name: str, table: pa.Table) -> Table:
        """An Arrow table as a kept one."""
        return self.backend.create_table(name, table, temp=True, overwrite=True)

    def empty(self, name: str, columns: Mapping[str, str]) -> Table:
        """A kept table without rows, to be filled with `append`."""
        return self.backend.create_table(name, schema=ibis.schema(dict(columns)), temp=True, overwrite=True)

    def append(self, name: str, rows: Table | pa.Table) -> None:
        """Add rows with the columns of the kept table, in any order of columns."""
        target = self.backend.table(name)
        self.backend.insert(name, rows.select(*target.columns) if not isinstance(rows, pa.Table) else rows.select(target.columns))

    def drop(self, name: str) -> None:
        """Forget a kept table."""
        self.backend.drop_table(name, force=True)

    def arrow(self, expression: Table) -> pa.Table:
        """The rows of an expression; only for what is known to be small or cut into ranges."""
        return self.backend.to_pyarrow(expression)

    def batches(self, expression: Table, num_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of an expression, streamed in its order."""
        yield from self.backend.to_pyarrow_batches(expression, chunk_size=num_rows)

    def value(self, expression: Any) -> Any:
        """A scalar expression as a Python value."""
        return self.backend.to_pyarrow(expression).as_py()


def seconds_of(timestamp: Column) -> Column:
    """Whole seconds since 1970, rounded down (a cast would round to the nearest and let the end of a day pass for the next one)."""
    return timestamp.truncate("s").epoch_seconds().cast("int64")


def period_of(timestamp: Column, period_seconds: int) -> Column:
    """Number of the period that holds a time; what happened in period p is known from period p + 1 on."""
    return (seconds_of(timestamp) // period_seconds).cast("int64")


def period_seconds(granularity_days: float) -> int:
    return max(1, round(granularity_days * 86_400))


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
    return table.mutate(**{number: ibis.range(first, table[last] + 1).unnest().cast("int64")})


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
