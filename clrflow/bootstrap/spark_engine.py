"""Bootstrapping on many machines: the same expressions as SQL of Spark, and the same nesting in its executors.

Results leave Spark as Arrow (Ibis' own way leads through pandas, where an int64 beside a null becomes a float). What is nested lies as Parquet below a
scratch URI that driver and executors reach, where each span's worker reads it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from ibis.backends.pyspark.datatypes import PySparkSchema

from clrflow import storage
from clrflow.bootstrap.engine import BUCKET, KeepsTables, Part, Result, Span, Work
from clrflow.bootstrap.expressions import Table
from clrflow.bootstrap.settings import SparkSettings
from clrflow.data.tables import table_files
from clrflow.errors import ConfigError

CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.ansi.enabled": "true",  # an overflow is an error, as on DuckDB, and no other number
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}
"""What the step relies on, and quiet."""


class SparkEngine(KeepsTables):
    """See engine.Engine."""

    def __init__(self, settings: SparkSettings, *, scratch: str):
        """Start a session, or use the one that there is. ConfigError without pyspark."""
        super().__init__()
        self.max_lists: int | None = None
        self.max_engagements: int | None = None
        self.max_requests: int | None = None
        self.session: Any = _session(settings)
        self.backend: Any = ibis.pyspark.connect(self.session)
        self.root = storage.join(storage.absolute(scratch or "."), f".spark-{uuid.uuid4().hex[:8]}")
        self._prefix = f"clrflow_{uuid.uuid4().hex[:8]}_"
        self._kept: dict[str, list[str]] = {}
        """Folders that hold a table's rows, by its name."""

    def __enter__(self) -> SparkEngine:
        return self

    def __exit__(self, *error: Any) -> None:
        """Tables and scratch go; the session stays with whoever has started it, and ends with the process."""
        self.drop(*self._kept)
        storage.remove(self.root)

    def parquet(self, name: str, uri: str) -> Table:
        # File by file: names that begin with `day=` must not become a column.
        return self._view(name, self.session.read.parquet(*(self._spark_uri(file) for file in table_files(uri))))

    def keep(self, name: str, expression: Table, *, sorted_by: Sequence[str] = ()) -> Table:
        del sorted_by  # Spark shuffles whatever it joins
        self._kept[name] = [self._written(name, self._frame(expression))]
        return self._again(name)

    def load(self, name: str, table: pa.Table) -> Table:
        self._kept[name] = [self._written(name, self.session.createDataFrame(table))]
        return self._again(name)

    def empty(self, name: str, columns: Mapping[str, str]) -> None:
        self.load(name, ibis.schema(dict(columns)).to_pyarrow().empty_table())

    def append(self, name: str, rows: Table, *, sorted_by: Sequence[str] = ()) -> None:
        del sorted_by
        schema = self.table(name).schema()
        rows = rows.select(*schema.names).cast(dict(schema.items()))
        self._kept[name].append(self._written(name, self._frame(rows)))
        self._again(name)

    def table(self, name: str) -> Table:
        return self.backend.table(self._prefix + name)

    def drop(self, *names: str) -> None:
        for name in names:
            if self._kept.pop(name, None) is not None:
                self.backend.drop_view(self._prefix + name, force=True)

    def arrow(self, expression: Table) -> pa.Table:
        # Ibis takes Spark's times, which are instants, for times without a zone.
        fields = [
            field.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) else field
            for field in expression.schema().to_pyarrow()
        ]
        return self._frame(expression).toArrow().cast(pa.schema(fields))

    def value(self, expression: Any) -> Any:
        return self.arrow(expression.name("value").as_table()).column("value")[0].as_py()

    def each(self, spans: Sequence[Span], parts: Mapping[str, Part], work: Work[Result]) -> Iterator[Result]:
        if not spans:
            return
        folders, schemas = {}, {}
        for name, part in parts.items():
            folders[name] = self.scratch(f"part-{name}")
            frame = self._frame(part.table).repartition(BUCKET).sortWithinPartitions(BUCKET, *part.order_by)
            frame.write.partitionBy(BUCKET).mode("overwrite").parquet(self._spark_uri(folders[name]))
            schemas[name] = part.table.schema().to_pyarrow()
        task = _Task(folders=folders, schemas=schemas, orders={name: part.order_by for name, part in parts.items()}, work=work)
        context = self.session.sparkContext
        yield from context.parallelize(list(spans), len(spans)).map(task).toLocalIterator(prefetchPartitions=True)
        for folder in folders.values():
            storage.remove(folder)

    def scratch(self, name: str) -> str:
        folder = storage.join(self.root, f"{name}-{uuid.uuid4().hex[:8]}")
        storage.make_folder(folder)
        return folder

    def _frame(self, expression: Table) -> Any:
        """Rows whose columns have the types that Ibis believes them to have; Spark's own are at times narrower (an int for a sum)."""
        frame = self.session.sql(self.backend.compile(expression))
        return frame.select(*(frame[field.name].cast(field.dataType) for field in PySparkSchema.from_ibis(expression.schema())))

    def _written(self, name: str, frame: Any) -> str:
        """Compute a table into a folder: cached, its plan would stand in that of every table made from it, and a lost machine would cost all."""
        folder = self.scratch(name)
        frame.write.mode("overwrite").parquet(self._spark_uri(folder))
        return folder

    def _again(self, name: str) -> Table:
        """A kept table as its folders hold it now."""
        return self._view(name, self.session.read.parquet(*(self._spark_uri(folder) for folder in self._kept[name])))

    def _view(self, name: str, frame: Any) -> Table:
        frame.createOrReplaceTempView(self._prefix + name)
        return self.backend.table(self._prefix + name)

    def _spark_uri(self, uri: str) -> str:
        """Spark reaches S3 by the name s3a, and takes paths as they are: `day=` is no `day%3D`."""
        if storage.is_local(uri):
            return f"file://{storage.local_path(uri)}"
        return "s3a://" + uri.removeprefix("s3://") if uri.startswith("s3://") else uri


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Task:
    """What an executor does with a span."""

    folders: Mapping[str, str]
    schemas: Mapping[str, pa.Schema]
    orders: Mapping[str, tuple[str, ...]]
    work: Any

    def __call__(self, span: Span) -> Any:
        rows = {}
        for name, folder in self.folders.items():
            schema, found = self.schemas[name], []
            for place in storage.list_folders(folder):
                bucket = int(storage.name_of(place).partition("=")[2])
                if span[0] <= bucket <= span[1]:
                    of_bucket = _read(place)
                    found.append(
                        of_bucket.append_column(BUCKET, pa.array(np.full(len(of_bucket), bucket))).select(schema.names).cast(schema)
                    )
            joined = pa.concat_tables(found) if found else schema.empty_table()
            rows[name] = joined.sort_by([(column, "ascending") for column in self.orders[name]])
        return self.work(rows)


def _read(folder: str) -> pa.Table:
    """What Spark wrote into a folder; its own markers are left out. Partitioning isn't read from names."""
    files = storage.list_files(folder, ".parquet")
    if not files:
        return pa.table({})
    fs, _ = storage.filesystem(files[0])
    return ds.dataset([storage.filesystem(file)[1] for file in files], format="parquet", filesystem=fs, partitioning=None).to_table()


def _session(settings: SparkSettings) -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(
            "bootstrap.engine='spark' needs pyspark, which isn't installed; install clrflow[spark], or use engine='duckdb'."
        ) from error
    # Executors on this machine must run this Python, wherever PATH leads.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("clrflow bootstrap")
    if settings.master:
        builder = builder.master(settings.master)
    for name, value in {**CONF, **settings.conf}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
