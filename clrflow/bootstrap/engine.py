"""What evaluates the Ibis expressions of bootstrapping: DuckDB on one machine (duckdb_engine.py) or Spark on many (spark_engine.py).

An engine keeps intermediate tables and hands small results over as Arrow. What Arrow says better than SQL, nesting rows into lists and picking
medoids, is a function over some buckets of requests: `each` gives it their rows, on one machine in a loop, on Spark in the executors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from clrflow.bootstrap.expressions import Table
from clrflow.bootstrap.settings import BootstrapSettings

BUCKET = "bucket"
"""Column of a Part's table that says which bucket a row belongs to."""

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One of the tables that a span's function gets."""

    table: Table
    """Has the int64 column BUCKET."""
    order_by: tuple[str, ...]
    """Columns by which the rows come sorted, ascending; together they decide the order."""


Span = tuple[int, int]
"""First and last of some buckets that are worked on at once."""
Work = Callable[[Mapping[str, pa.Table]], Result]
"""The rows of a span by the name of the part → something small. Spark pickles it: a module's function or a frozen dataclass."""


def spans_of(sizes: Mapping[int, int], limit: int) -> list[Span]:
    """Neighbouring buckets (or days) together as long as they have at most `limit` rows; `sizes` has the number of rows by bucket."""
    spans: list[Span] = []
    room = 0
    for bucket, size in sorted(sizes.items()):
        if spans and size <= room:
            spans[-1] = (spans[-1][0], bucket)
        else:
            spans.append((bucket, bucket))
            room = limit
        room -= size
    return spans


class KeepsTables:
    """What every engine does alike with what it keeps; see Engine."""

    def __init__(self) -> None:
        self._shared: dict[str, str] = {}

    def once(self: Any, name: str, build: Callable[[], Table | Sequence[Table]], *, sorted_by: Sequence[str] = ()) -> Table:
        if name not in self._kept:
            built = build()
            first, *others = built if isinstance(built, Sequence) else [built]
            self.keep(name, first, sorted_by=sorted_by)
            for part in others:
                self.append(name, part, sorted_by=sorted_by)
        return self.table(name)

    def shared(self: Any, name: str, write: Callable[[str], None]) -> str:
        if name not in self._shared:
            self._shared[name] = self.scratch(name)
            write(self._shared[name])
        return str(self._shared[name])


class Engine(Protocol):
    """A context manager; kept tables live as long as it does."""

    max_lists: int | None
    """Candidate lists that should exist at once; None: as many as there are."""
    max_engagements: int | None
    """Engagements whose pairs are counted at once; None: all."""
    max_requests: int | None
    """Days are built together until they have so many requests; None: all days at once."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *error: Any) -> None: ...

    def parquet(self, name: str, uri: str) -> Table:
        """A cleaned table where it lies, as an expression."""
        ...

    def keep(self, name: str, expression: Table, *, sorted_by: Sequence[str] = ()) -> Table:
        """Compute an expression once; later uses read the result. A name that is taken is replaced.

        `sorted_by` is how rows should lie so that ranges of the first column are found fast; it promises nothing.
        """
        ...

    def once(self, name: str, build: Callable[[], Table | Sequence[Table]], *, sorted_by: Sequence[str] = ()) -> Table:
        """The kept table of that name, computed when it isn't there yet; of several expressions one after the other, each sorted for itself."""
        ...

    def load(self, name: str, table: pa.Table) -> Table:
        """An Arrow table as a kept one."""
        ...

    def empty(self, name: str, columns: Mapping[str, str]) -> None:
        """A kept table without rows, to be filled with `append`; `columns` are Ibis types by name."""
        ...

    def append(self, name: str, rows: Table, *, sorted_by: Sequence[str] = ()) -> None:
        """Add rows with the columns of the kept table, in any order of columns; `sorted_by` as in `keep`, of these rows."""
        ...

    def table(self, name: str) -> Table:
        """A kept table as it is now."""
        ...

    def drop(self, *names: str) -> None:
        """Forget kept tables; names that aren't there are fine."""
        ...

    def arrow(self, expression: Table) -> pa.Table:
        """The rows of an expression; only for what is known to be small."""
        ...

    def value(self, expression: Any) -> Any:
        """A scalar expression as a Python value."""
        ...

    def each(self, spans: Sequence[Span], parts: Mapping[str, Part], work: Work[Result]) -> Iterable[Result]:
        """Call `work` for every span with its rows of all parts; gives the results, while others may still be at work."""
        ...

    def shared(self, name: str, write: Callable[[str], None]) -> str:
        """A scratch folder that `write` has filled, once."""
        ...

    def scratch(self, name: str) -> str:
        """A new folder, as a URI that the workers of `each` reach too; it goes with the engine."""
        ...


def connect(settings: BootstrapSettings, scratch: str | Path | None = None) -> Engine:
    """The engine that the settings name; `scratch` is the folder (Spark: URI) below which its intermediate data lie while it runs."""
    if settings.engine == "spark":
        from clrflow.bootstrap.spark_engine import SparkEngine

        return SparkEngine(settings.spark, scratch=str(scratch or ""))
    from clrflow.bootstrap.duckdb_engine import DuckdbEngine

    return DuckdbEngine(memory_limit=settings.memory_limit, scratch=Path(scratch) if scratch else None)
