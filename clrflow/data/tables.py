"""Reads and writes the Parquet tables that steps hand each other: one place that knows how a table lies in a folder.

A table is a Parquet file or a folder of them, read in the order of their names. Writing is deterministic: equal rows give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from clrflow import storage
from clrflow.errors import DataError
from clrflow.manifest import Output

ROWS_PER_GROUP = 131_072
"""Rows of a row group of a narrow table; a reader that streams holds one of them at a time."""
ROWS_PER_FILE = 16 * ROWS_PER_GROUP
"""Rows after which the next file begins, so that several readers can share a table."""
GROUP_BYTES = 32 << 20
"""Aim for the uncompressed size of a row group of a wide table (embeddings)."""


def table_files(uri: str) -> list[str]:
    """The Parquet files of a table, by name; DataError when there is none."""
    files = storage.list_files(uri, ".parquet")
    if not files:
        raise DataError(f"{uri}: holds no Parquet file; check the URI, or run the step that writes it again.")
    return files


def open_dataset(uri: str) -> ds.Dataset:
    """A table as an Arrow dataset: lazy, with projections and filters, streaming batch by batch."""
    files = table_files(uri)
    fs, _ = storage.filesystem(files[0])
    return ds.dataset([storage.filesystem(file)[1] for file in files], format="parquet", filesystem=fs)


def read_table(uri: str, columns: list[str] | None = None, filter: ds.Expression | None = None) -> pa.Table:
    """A whole table, or some columns and rows of it, in the order in which it was written; for tables that fit in memory."""
    return open_dataset(uri).to_table(columns=columns, filter=filter)


def iter_batches(uri: str, columns: list[str] | None = None, num_rows: int = 65_536) -> Iterator[pa.RecordBatch]:
    """A table in batches of at most `num_rows` rows, in order; memory stays bounded however large its row groups are."""
    for file in table_files(uri):
        fs, path = storage.filesystem(file)
        with fs.open(path, "rb") as stream:
            yield from open_parquet(stream).iter_batches(batch_size=num_rows, columns=columns)


def open_parquet(stream: Any) -> pq.ParquetFile:
    """A Parquet file that is read through a small buffer: a column chunk of gigabytes isn't pulled into memory at once.

    Where pages have checksums they are verified, so a damaged page is an error and not another number.
    """
    return pq.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)


def register(con: Any, name: str, uri: str) -> None:
    """Make a table known to a DuckDB connection as a view: native scans on local files, Arrow datasets elsewhere."""
    if storage.is_local(uri):
        # DuckDB can't bind parameters in a view's definition, so quotes are doubled by hand. Folders named day=... are no column of the table.
        listed = ", ".join("'" + str(storage.local_path(file)).replace("'", "''") + "'" for file in table_files(uri))
        con.execute(f'CREATE OR REPLACE VIEW "{name}" AS SELECT * FROM read_parquet([{listed}], hive_partitioning = false)')
    else:
        con.register(name, open_dataset(uri))


class TableWriter:
    """Writes a table's rows, in the order in which they come, as `uri/part-00000.parquet`, ...; what lay there before is replaced.

    Rows are cut anew into row groups, so how they were batched leaves no trace in the files. Memory: one row group. Close it to get the
    Output; a table without rows is one file without rows.
    """

    def __init__(self, uri: str, schema: pa.Schema, *, rows_per_group: int = ROWS_PER_GROUP, rows_per_file: int = ROWS_PER_FILE):
        self.uri, self.schema = uri, schema
        self.rows_per_group, self.rows_per_file = rows_per_group, rows_per_file
        self.num_rows = 0
        self._pending: list[pa.Table] = []
        self._num_pending = self._num_parts = self._in_part = 0
        self._stream: Any = None
        self._part: pq.ParquetWriter | None = None
        storage.remove(uri)
        storage.make_folder(uri)

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows; columns are picked by name and cast to the schema where that loses nothing (ArrowException otherwise)."""
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        self._pending.append(table.select(self.schema.names).cast(self.schema))
        self._num_pending += len(table)
        if self._num_pending >= self.rows_per_group:
            joined = pa.concat_tables(self._pending)
            whole = self._num_pending - self._num_pending % self.rows_per_group
            for start in range(0, whole, self.rows_per_group):
                self._put(joined.slice(start, self.rows_per_group))
            self._pending, self._num_pending = [joined.slice(whole)], self._num_pending - whole

    def close(self) -> Output:
        """Write what is left; returns what lies there now."""
        rest = pa.concat_tables(self._pending) if self._pending else self.schema.empty_table()
        if len(rest) or self.num_rows == 0:
            self._put(rest)
        self._finish_part()
        return Output.of(self.uri, num_rows=self.num_rows)

    def abandon(self) -> None:
        """Let go of the file without finishing it, after an error; nothing to do after `close`."""
        if self._stream is not None:
            storage.discard(self._stream)
        if self._part is not None:
            self._part.is_open = False  # pyarrow would write its last bytes once it is collected
        self._stream = self._part = None

    def _put(self, table: pa.Table) -> None:
        if self._part is None:
            fs, path = storage.filesystem(storage.join(self.uri, f"part-{self._num_parts:05d}.parquet"))
            self._stream = fs.open(path, "wb")
            self._part = _parquet_writer(self._stream, self.schema)
            self._num_parts, self._in_part = self._num_parts + 1, 0
        self._part.write_table(table, row_group_size=self.rows_per_group)
        self._in_part, self.num_rows = self._in_part + len(table), self.num_rows + len(table)
        if self._in_part >= self.rows_per_file:
            self._finish_part()

    def _finish_part(self) -> None:
        if self._part is not None:
            self._part.close()
            self._stream.close()
        self._stream = self._part = None


def write_table(
    uri: str,
    rows: pa.Table | Iterable[pa.RecordBatch | pa.Table],
    schema: pa.Schema,
    *,
    rows_per_group: int = ROWS_PER_GROUP,
    rows_per_file: int = ROWS_PER_FILE,
) -> Output:
    """Write a whole table or a stream of batches; see TableWriter."""
    writer = TableWriter(uri, schema, rows_per_group=rows_per_group, rows_per_file=rows_per_file)
    try:
        for batch in [rows] if isinstance(rows, pa.Table) else rows:
            writer.write(batch)
        return writer.close()
    finally:
        writer.abandon()


def write_file(uri: str, rows: pa.Table, schema: pa.Schema, *, rows_per_group: int = ROWS_PER_GROUP) -> int:
    """Write one Parquet file, complete or absent, and return its size in bytes; for rows that fit in memory."""
    sink = pa.BufferOutputStream()
    with _parquet_writer(sink, schema) as writer:
        writer.write_table(rows.select(schema.names).cast(schema), row_group_size=rows_per_group)
    data = sink.getvalue()
    storage.write_bytes(uri, data.to_pybytes())
    return int(data.size)


def _parquet_writer(stream: Any, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(stream, schema, compression="zstd", version="2.6", write_page_checksum=True)


def group_rows(row_bytes: int) -> int:
    """Rows of a row group for rows of about so many bytes: a power of two between 1,024 and ROWS_PER_GROUP."""
    rows = 1024
    while rows * 2 * row_bytes <= GROUP_BYTES and rows * 2 <= ROWS_PER_GROUP:
        rows *= 2
    return rows
