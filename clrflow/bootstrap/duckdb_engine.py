"""Bootstrapping on one machine: DuckDB in this process, bounded in memory, spilling to a scratch folder."""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ibis
import pyarrow as pa
from ibis.backends.sql.datatypes import DuckDBType

from clrflow.bootstrap.engine import BUCKET, KeepsTables, Part, Result, Span, Work
from clrflow.bootstrap.expressions import Table
from clrflow.data import tables
from clrflow.memory import give_back_freed_memory

LISTS_AT_ONCE = 50_000
"""Candidate lists that exist at once; at 100 candidates a list about 5 million rows."""
ENGAGEMENTS_AT_ONCE = 4_000_000
"""Engagements whose pairs are counted at once: they are five times as many, nearly all different, and a table of 100 million different groups
doesn't fit 2 GB however much is spilled."""
REQUESTS_AT_ONCE = 250_000
"""Requests, of one or more days, that are built together: what is kept between steps stays bounded, and a small log is one chunk."""


SPANS_AT_ONCE = 2
"""Spans that `each` works on at once; each holds its rows in memory, beside those that are being read."""


class DuckdbEngine(KeepsTables):
    """See engine.Engine."""

    def __init__(self, *, memory_limit: str, scratch: Path | None = None):
        """`scratch` is the folder below which spilled data lies while it runs; None is the system's temporary folder."""
        super().__init__()
        give_back_freed_memory()
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True)
            for leftover in scratch.glob(".duckdb-*"):  # of a killed attempt; the step holds its folder alone
                shutil.rmtree(leftover, ignore_errors=True)
        self.max_lists: int | None = LISTS_AT_ONCE
        self.max_engagements: int | None = ENGAGEMENTS_AT_ONCE
        self.max_requests: int | None = REQUESTS_AT_ONCE
        self.folder = Path(tempfile.mkdtemp(prefix=".duckdb-", dir=scratch))
        self.backend: Any = ibis.duckdb.connect(memory_limit=memory_limit, temp_directory=str(self.folder))
        self.backend.raw_sql("SET TimeZone = 'UTC'")
        self.backend.raw_sql("SET enable_progress_bar = false")
        # Whoever needs an order asks for it; keeping the order of what was read costs memory.
        self.backend.raw_sql("SET preserve_insertion_order = false")
        self._kept: set[str] = set()

    def __enter__(self) -> DuckdbEngine:
        return self

    def __exit__(self, *error: Any) -> None:
        self.backend.disconnect()
        shutil.rmtree(self.folder, ignore_errors=True)

    def parquet(self, name: str, uri: str) -> Table:
        tables.register(self.backend.con, name, uri)
        return self.backend.table(name)

    def keep(self, name: str, expression: Table, *, sorted_by: Sequence[str] = ()) -> Table:
        # Ibis' own create_table writes the rows twice, under a passing name first.
        self.backend.con.execute(f"CREATE OR REPLACE TEMP TABLE {_quoted(name)} AS {self._select(expression)}{_order(sorted_by)}")
        self._kept.add(name)
        return self.backend.table(name)

    def load(self, name: str, table: pa.Table) -> Table:
        self._kept.add(name)
        return self.backend.create_table(name, table, temp=True, overwrite=True)

    def empty(self, name: str, columns: Mapping[str, str]) -> None:
        self.load(name, ibis.schema(dict(columns)).to_pyarrow().empty_table())

    def append(self, name: str, rows: Table, *, sorted_by: Sequence[str] = ()) -> None:
        rows = rows.select(*self.backend.table(name).columns)
        self.backend.con.execute(f"INSERT INTO {_quoted(name)} {self._select(rows)}{_order(sorted_by)}")

    def table(self, name: str) -> Table:
        return self.backend.table(name)

    def drop(self, *names: str) -> None:
        for name in names:
            self._kept.discard(name)
            self.backend.drop_table(name, force=True)

    def arrow(self, expression: Table) -> pa.Table:
        return self.backend.to_pyarrow(expression)

    def value(self, expression: Any) -> Any:
        return self.backend.to_pyarrow(expression).as_py()

    def each(self, spans: Sequence[Span], parts: Mapping[str, Part], work: Work[Result]) -> Iterator[Result]:
        # Turned into SQL once: that takes longer than running it on a small span.
        queries = {}
        for name, part in parts.items():
            order = ", ".join(map(_quoted, part.order_by))
            queries[name] = f"SELECT * FROM ({self.backend.compile(part.table)}) WHERE {BUCKET} BETWEEN ? AND ? ORDER BY {order}"
        # The engine reads the next span while threads work on those before it: numpy and Arrow leave the interpreter to others.
        working: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(max_workers=SPANS_AT_ONCE) as pool:
            try:
                for span in spans:
                    rows = {name: self.backend.con.execute(query, list(span)).to_arrow_table() for name, query in queries.items()}
                    if len(working) == SPANS_AT_ONCE:
                        yield working.popleft().result()
                    working.append(pool.submit(work, rows))
                while working:
                    yield working.popleft().result()
            finally:
                for one in working:
                    one.cancel()

    def scratch(self, name: str) -> str:
        return tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder)

    def _select(self, expression: Table) -> str:
        """SQL whose columns have the types that Ibis believes them to have; DuckDB's own are at times others (a decimal for a weight)."""
        columns = ", ".join(
            f"CAST({_quoted(name)} AS {DuckDBType.to_string(kind)}) AS {_quoted(name)}" for name, kind in expression.schema().items()
        )
        return f"SELECT {columns} FROM ({self.backend.compile(expression)})"


def _order(columns: Sequence[str]) -> str:
    return f" ORDER BY {', '.join(map(_quoted, columns))}" if columns else ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
