"""Reads the files of an input table, whatever lossless spelling of the contract's types they use, as batches of exactly those types.

Every file is looked at before any row is read, so that a wrong column costs seconds; problems are collected as sentences, not raised one by
one. Rows are numbered over the table (files by name, rows in file order): the number is how a later error finds its file.
Next: rules.py (what is wrong with rows).
"""

from __future__ import annotations

import bisect
import dataclasses
import difflib
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clrflow import storage
from clrflow.data.schema import ITEMS, Table
from clrflow.data.settings import DataSettings
from clrflow.data.tables import open_parquet
from clrflow.errors import DataError

ROW_NUMBER = "row_number"
EMBEDDING_WIDTH, EMBEDDING_STATE = "embedding_width", "embedding_state"
"""What is noted of an item's embedding while it streams by: its width, and `ok`, `null` (or empty), `nan` (or infinite) or `zero`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Intake:
    """An input table after a look at all its files."""

    table: Table
    uri: str
    """Where it lies; "" when the input lacks it."""
    files: list[str]
    first_rows: list[int]
    """Row number of each file's first row."""
    num_rows: int
    problems: list[str]
    extra_columns: dict[str, int]
    """Columns that the contract doesn't know, with the number of files that have them; they are ignored."""
    partial_columns: dict[str, int]
    """Optional columns that some files have and others lack, with the number of files that lack them; null there."""

    def place_of(self, row_number: int) -> str:
        """`row 3 of part-1.parquet`, the row counted from 0 in its file."""
        index = bisect.bisect_right(self.first_rows, row_number) - 1
        return f"row {row_number - self.first_rows[index]} of {self.files[index]}"


def locate(tables_uri: str, table: Table) -> str:
    """The URI of a table, `NAME.parquet` or `NAME/`; "" when there is neither. DataError when there are both."""
    file, folder = storage.join(tables_uri, f"{table.name}.parquet"), storage.join(tables_uri, table.name)
    found = [uri for uri in (file, folder) if storage.exists(uri)]
    if len(found) == 2:
        raise DataError(f"{table.name}: both {file} and {folder}/ exist, and which one counts is not ours to guess; remove one.")
    return found[0] if found else ""


def look(tables_uri: str, table: Table, settings: DataSettings) -> Intake:
    """Open every file of a table and hold its schema against the contract."""
    uri = locate(tables_uri, table)
    files = storage.list_files(uri, ".parquet") if uri else []
    problems: list[str] = []
    schemas: list[tuple[str, pa.Schema]] = []
    first_rows, total = [], 0
    for file in files:
        first_rows.append(total)
        try:
            fs, path = storage.filesystem(file)
            with fs.open(path, "rb") as stream:
                parquet = pq.ParquetFile(stream)
                schemas.append((file, parquet.schema_arrow))
                total += parquet.metadata.num_rows
        except (OSError, pa.ArrowException) as error:
            problems.append(f"{table.name}: {file} can't be read as Parquet ({_short(error)}); write it again or take it away.")
    problems += _schema_problems(table, schemas)
    if not files and not table.may_be_missing:
        where = f"{storage.join(tables_uri, table.name)}.parquet and {storage.join(tables_uri, table.name)}/*.parquet"
        problems.append(f"{table.name}: the table is required and there is nothing at {where}; write it there or correct data.tables.")
    elif files and not total and not problems and not table.may_be_empty:
        problems.append(
            f"{table.name}: the table has 0 rows in {len(files)} file(s) at {uri}, so there is nothing to learn from; check the export."
        )
    extra, partial = _extra_columns(table, schemas), _partial_columns(table, schemas)
    if settings.extra_columns == "reject":
        problems += [_extra_problem(table, name, count) for name, count in extra.items()]
    if settings.partial_columns == "reject":
        problems += [
            f"{table.name}.{name}: the optional column is missing in {count} of {len(files)} files, whose rows would hold null; export it in all of "
            "them or in none, or set data.partial_columns=ignore."
            for name, count in partial.items()
        ]
    return Intake(
        table=table,
        uri=uri,
        files=files,
        first_rows=first_rows,
        num_rows=total,
        problems=problems,
        extra_columns=extra,
        partial_columns=partial,
    )


def _extra_columns(table: Table, schemas: list[tuple[str, pa.Schema]]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for _, schema in schemas:
        for name in set(schema.names) - set(table.columns.names):
            found[name] += 1
    return dict(sorted(found.items()))


def _partial_columns(table: Table, schemas: list[tuple[str, pa.Schema]]) -> dict[str, int]:
    lacking = {name: sum(name not in schema.names for _, schema in schemas) for name in table.optional.names}
    return {name: count for name, count in lacking.items() if 0 < count < len(schemas)}


def _extra_problem(table: Table, name: str, count: int) -> str:
    near = difflib.get_close_matches(name, table.columns.names, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return (
        f"{table.name}.{name}: the contract doesn't know the column, which {count} file(s) have{meant}; rename it, leave it out of the "
        "export, or set data.extra_columns=ignore."
    )


def _schema_problems(table: Table, schemas: list[tuple[str, pa.Schema]]) -> list[str]:
    problems = []
    for field in table.columns:
        required = field.name in table.required.names
        lacking = [file for file, schema in schemas if field.name not in schema.names]
        if required and lacking:
            has = ", ".join(dict(schemas)[lacking[0]].names)
            problems.append(
                f"{table.name}.{field.name}: the column is missing in {_listed(lacking)}, which has {has}; "
                f"add it as {field.type} or rename the one that holds it."
            )
        by_type: dict[str, list[str]] = defaultdict(list)
        for file, schema in schemas:
            if schema.names.count(field.name) > 1:
                problems.append(f"{table.name}.{field.name}: {file} has the column {schema.names.count(field.name)} times; keep one.")
            elif field.name in schema.names and not accepts(field.type, schema.field(field.name).type):
                by_type[str(schema.field(field.name).type)].append(file)
        for kind, files in by_type.items():
            others = len(schemas) - len(lacking) - len(files)
            drift = f" ({others} other file(s) have it right)" if others else ""
            problems.append(
                f"{table.name}.{field.name}: the type is {kind} in {_listed(files)}{drift}, which does not convert to {field.type} "
                f"without loss; {_type_remedy(field.type, kind)}."
            )
    return problems


def _type_remedy(want: pa.DataType, have: str) -> str:
    if pa.types.is_integer(want) and have in ("double", "float", "halffloat"):
        return "ids above 2^53 are already damaged in such a column (often a null turned it into floats): export it as a nullable int64"
    if pa.types.is_timestamp(want):
        return "export it as a timestamp (any unit or timezone) or a date, not as a number or text"
    return f"export it as {want}"


def accepts(want: pa.DataType, have: pa.DataType) -> bool:
    """Whether a file's type converts to the contract's without loss (float64 embeddings are rounded to float32, which is meant)."""
    if pa.types.is_dictionary(have):
        have = have.value_type
    if pa.types.is_null(have):  # a column of nulls only: its rows meet the rules for nulls
        return True
    if pa.types.is_timestamp(want):
        return bool(pa.types.is_timestamp(have) or pa.types.is_date(have))
    if pa.types.is_string(want):
        return bool(pa.types.is_string(have) or pa.types.is_large_string(have) or pa.types.is_string_view(have))
    if pa.types.is_integer(want):
        return bool(pa.types.is_integer(have))  # an unsigned or wider one may still overflow: that is found when it is read
    if pa.types.is_list(want):
        lists = pa.types.is_list(have) or pa.types.is_large_list(have) or pa.types.is_fixed_size_list(have)
        if not lists or pa.types.is_null(have.value_type):
            return bool(lists)
        inner = pa.types.is_floating if pa.types.is_floating(want.value_type) else pa.types.is_integer
        return bool(inner(have.value_type))
    return bool(want == have)


def batch_schema(table: Table) -> pa.Schema:
    """Types of the batches that `batches` gives: the contract's columns, the row number, and for items what was noted of embeddings."""
    fields = [*table.columns, pa.field(ROW_NUMBER, pa.int64())]
    if table.name == ITEMS.name:
        fields += [pa.field(EMBEDDING_WIDTH, pa.int32()), pa.field(EMBEDDING_STATE, pa.string())]
    return pa.schema(fields)


def batches(intake: Intake, num_rows: int = 65_536) -> Iterator[pa.Table]:
    """The rows of all files in order, in batches of at most `num_rows`, as `batch_schema`; DataError names a file that fails on the way.

    Memory: one batch, even where a row group is huge.
    """
    table = intake.table
    for file, start in zip(intake.files, intake.first_rows):
        fs, path = storage.filesystem(file)
        row = start
        try:
            with fs.open(path, "rb") as stream:
                parquet = open_parquet(stream)
                columns = [name for name in table.columns.names if name in parquet.schema_arrow.names]
                for batch in parquet.iter_batches(batch_size=num_rows, columns=columns):
                    yield _normalised(table, batch, row, file)
                    row += len(batch)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{table.name}: reading {file} broke off at row {row - start} ({_short(error)}), so the file is damaged; write it again."
            ) from error


def _normalised(table: Table, batch: pa.RecordBatch, first_row: int, file: str) -> pa.Table:
    arrays: dict[str, pa.Array] = {}
    for field in table.columns:
        if field.name not in batch.schema.names:
            arrays[field.name] = pa.nulls(len(batch), field.type)
            continue
        try:
            arrays[field.name] = convert(batch.column(batch.schema.names.index(field.name)), field.type)
        except pa.ArrowException as error:
            raise DataError(
                f"{table.name}.{field.name}: a value between rows {first_row} and {first_row + len(batch)} ({file}) does not fit {field.type} "
                f"({_short(error)}); correct it in the export."
            ) from error
    arrays[ROW_NUMBER] = pa.array(np.arange(first_row, first_row + len(batch), dtype=np.int64))
    if table.name == ITEMS.name:
        arrays[EMBEDDING_WIDTH], arrays[EMBEDDING_STATE] = embedding_states(arrays["content_embedding"])
    return pa.table(arrays, schema=batch_schema(table))


def convert(values: pa.Array, want: pa.DataType) -> pa.Array:
    """An array as the contract's type; ArrowException when a value doesn't fit. Times without a timezone are read as UTC."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_timestamp(want):
        if pa.types.is_date(values.type):
            values = values.cast(pa.timestamp("ms")) if pa.types.is_date64(values.type) else values.cast(pa.timestamp("s"))
        # Nanoseconds are cut to microseconds; every other unit either fits or is an overflow that must be seen.
        return values.cast(want, safe=values.type.unit != "ns") if not pa.types.is_null(values.type) else values.cast(want)
    if pa.types.is_list(want) and pa.types.is_floating(want.value_type):
        return values.cast(want, safe=False)
    return values.cast(want)


def embedding_states(embeddings: pa.ListArray) -> tuple[pa.Array, pa.Array]:
    """Width and state of each embedding (see EMBEDDING_STATE), in one vectorised pass."""
    widths = pc.list_value_length(embeddings)
    lengths = pc.fill_null(widths, 0).to_numpy().astype(np.int64)
    values = embeddings.flatten().to_numpy(zero_copy_only=False)  # nulls inside become NaN
    ends = np.cumsum(lengths)

    def count(flags: np.ndarray) -> np.ndarray:
        running = np.concatenate([[0], np.cumsum(flags)])
        return running[ends] - running[ends - lengths]

    states = np.select([lengths == 0, count(~np.isfinite(values)) > 0, count(values != 0) == 0], ["null", "nan", "zero"], "ok")
    return widths.cast(pa.int32()), pa.array(states, pa.string())


def _listed(files: list[str]) -> str:
    return files[0] if len(files) == 1 else f"{len(files)} files, the first {files[0]}"


def _short(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__
