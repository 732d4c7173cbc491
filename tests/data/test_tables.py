"""Reading and writing the tables that steps hand each other."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from clrflow import storage
from clrflow.data.tables import group_rows, iter_batches, read_table, register, table_files, write_table
from clrflow.errors import DataError
from tests.data.helpers import GOOD, clean

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def numbered(count: int) -> pa.Table:
    ids = pa.array(range(count), pa.int64())
    return pa.table({"id": ids, "name": pc.cast(ids, pa.string())}, schema=SCHEMA)


def test_rows_come_back_in_order_across_files_and_row_groups(tmp_path):
    # 10 rows, 2 a group, a new file after 4: files of 4, 4 and 2 rows.
    output = write_table(str(tmp_path / "t"), numbered(10), SCHEMA, rows_per_group=2, rows_per_file=4)
    assert output.num_rows == 10
    assert [pq.read_metadata(file).num_rows for file in table_files(output.uri)] == [4, 4, 2]
    assert read_table(output.uri).equals(numbered(10))
    assert read_table(output.uri, ["name"], filter=ds.field("id") >= 8)["name"].to_pylist() == ["8", "9"]
    assert [len(batch) for batch in iter_batches(output.uri, num_rows=3)] == [3, 1, 3, 1, 2]


def test_how_rows_were_batched_leaves_no_trace(tmp_path):
    whole = write_table(str(tmp_path / "a"), numbered(10), SCHEMA, rows_per_group=4)
    pieces = [numbered(10).slice(start, 3) for start in range(0, 10, 3)]
    cut = write_table(str(tmp_path / "b"), iter(pieces), SCHEMA, rows_per_group=4)
    assert whole.fingerprint == cut.fingerprint


def test_an_empty_table_is_one_file_with_the_schema(tmp_path):
    output = write_table(str(tmp_path / "t"), iter([]), SCHEMA)
    assert output.num_rows == 0
    assert read_table(output.uri).schema.equals(SCHEMA)


def test_writing_replaces_what_lay_there(tmp_path):
    write_table(str(tmp_path / "t"), numbered(10), SCHEMA, rows_per_group=2, rows_per_file=2)
    output = write_table(str(tmp_path / "t"), numbered(3), SCHEMA)
    assert len(read_table(output.uri)) == 3


def test_a_value_that_does_not_fit_is_an_error_and_not_another_value(tmp_path):
    with pytest.raises(pa.ArrowException, match="2147483648"):
        write_table(str(tmp_path / "t"), pa.table({"id": [2**31]}), pa.schema([("id", pa.int32())]))


def test_duckdb_sees_a_registered_table_whatever_its_path_holds(tmp_path):
    output = write_table(str(tmp_path / "it's here"), numbered(5), SCHEMA)
    con = duckdb.connect()
    register(con, "numbers", output.uri)
    assert con.execute("SELECT sum(id) FROM numbers").fetchall() == [(10,)]


def test_a_folder_without_tables_is_named(tmp_path):
    with pytest.raises(DataError, match="nothing-here: holds no Parquet file"):
        read_table(str(tmp_path / "nothing-here"))


def test_row_groups_of_wide_rows_hold_fewer_rows():
    # 32 MiB a group: 8-byte rows reach the cap, rows of 1 KiB fit 32,768 times, rows of 1 MiB get the least.
    assert [group_rows(size) for size in (8, 1 << 10, 1 << 20)] == [131_072, 32_768, 1024]


def test_tables_on_an_object_store_are_read_written_and_checked_alike(tmp_path):
    store = "memory://bucket/in"
    for name, table in GOOD.items():
        write_table(storage.join(store, name), table, table.schema)
    result = clean(store, tmp_path)
    assert result.rows("events", "user_id", "item_id") == [(1, 10), (1, 20), (2, 10)]
    copied = write_table("memory://bucket/out", read_table(result.outputs["items"].uri), read_table(result.outputs["items"].uri).schema)
    assert read_table(copied.uri).equals(read_table(result.outputs["items"].uri))
    con = duckdb.connect()
    register(con, "items", copied.uri)
    assert con.execute("SELECT count(*) FROM items").fetchall() == [(2,)]
