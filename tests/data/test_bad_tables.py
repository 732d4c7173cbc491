"""Tables that break the contract: each is refused with the table, the column, the value, where it is and the way out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clrflow import storage
from clrflow.contracts import TIME
from clrflow.errors import BadInput, ConfigError, DataError
from tests.data.helpers import GOOD, at, boards, clean, events, interests, items, validate, write

ROW = (1, 10, 0, "click")


def replaced(table: pa.Table, column: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(column), column, values)


BAD = {
    "missing column": (
        {"events": GOOD["events"].drop(["timestamp"])},
        r"events\.timestamp: the column is missing in .*0\.parquet, which has user_id, item_id, action; add it as timestamp\[us, tz=UTC\]",
    ),
    "text for ids": (
        {"events": replaced(GOOD["events"], "user_id", pa.array(["a", "b", "c"]))},
        r"events\.user_id: the type is string .*does not convert to int64 without loss; export it as int64",
    ),
    "floats for ids": (
        {"events": replaced(GOOD["events"], "user_id", pa.array([1.0, 2.0, None]))},
        r"events\.user_id: the type is double .*2\^53 are already damaged.*nullable int64",
    ),
    "numbers for times": (
        {"events": replaced(GOOD["events"], "timestamp", pa.array([1, 2, 3]))},
        r"events\.timestamp: the type is int64 .*export it as a timestamp",
    ),
    "scalar for a list": (
        {"items": replaced(GOOD["items"], "interests", pa.array([1, 1]))},
        r"items\.interests: the type is int64 .*export it as list",
    ),
    "another type in one file": (
        {"events": [GOOD["events"], replaced(GOOD["events"], "item_id", pa.array(["10", "20", "10"]))]},
        r"events\.item_id: the type is string in .*1\.parquet \(1 other file\(s\) have it right\)",
    ),
    "column missing in one file": (
        {"events": [GOOD["events"], GOOD["events"].drop(["action"])]},
        r"events\.action: the column is missing in .*1\.parquet",
    ),
    "unsigned id beyond int64": (
        {"events": replaced(GOOD["events"], "item_id", pa.array([10, 20, 2**63], pa.uint64()))},
        r"events\.item_id: a value between rows 0 and 3 .*0\.parquet\) does not fit int64",
    ),
    "null id beside a large one": (
        {"events": events((2**53 + 1, 10, 0, "click"), (None, 10, 1, "click"))},
        r"events\.user_id: 1 row\(s\) break the rule null_id: user_id=null, item_id=10.*\(first: row 1 of .*0\.parquet\).*data\.null_id=drop",
    ),
    "null time": ({"events": events((1, 10, None, "click"))}, r"events\.timestamp: 1 row\(s\) break the rule null_id"),
    "unknown action": (
        {"events": events(ROW, (1, 10, 1, "like"), (1, 20, 1, "like"), (2, 10, 1, None))},
        r"events\.action: 3 row\(s\) break the rule unknown_action: action=like \(2 rows\); action=null \(first: row 1 of .*"
        r"data\.actions are click, save, impression.*data\.unknown_action=drop",
    ),
    "empty table": ({"events": GOOD["events"].slice(0, 0)}, r"events: the table has 0 rows in 1 file"),
    "required table missing": ({"events": None}, r"events: the table is required and there is nothing at .*events\.parquet"),
    "embedding of another width": (
        {"items": items(10, 20, 30, embeddings=[[1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 1.0]])},
        r"items\.embedding_width: 1 row\(s\) break the rule embedding_width: embedding_width=3, item_id=20 .*most items have width 2",
    ),
    "NaN in an embedding": (
        {"items": items(10, 20, embeddings=[[1.0, 2.0], [float("nan"), 1.0]])},
        r"items\.embedding_state: 1 row\(s\) break the rule bad_embedding: embedding_state=nan, item_id=20 .*data\.bad_embedding=drop",
    ),
    "infinity in an embedding": ({"items": items(10, 20, embeddings=[[1.0, 2.0], [float("inf"), 1.0]])}, r"embedding_state=nan, item_id=20"),
    "zero embedding": ({"items": items(10, 20, embeddings=[[0.0, 0.0], [1.0, 1.0]])}, r"embedding_state=zero, item_id=10"),
    "null embedding": ({"items": items(10, 20, embeddings=[[1.0, 1.0], None])}, r"embedding_state=null, item_id=20"),
    "null inside an embedding": ({"items": items(10, 20, embeddings=[[1.0, None], [1.0, 1.0]])}, r"embedding_state=nan, item_id=10"),
    "event in the future": (
        {"events": events(ROW, (1, 10, 60 * 24 * 31 + 1, "click"))},
        r"events\.timestamp: 1 row\(s\) break the rule future_event: timestamp=2025-02-01 00:01:00\+00, user_id=1 .*data\.future_event=drop",
    ),
    "item twice": ({"items": items(10, 20, 10)}, r"items\.item_id: 1 row\(s\) break the rule duplicate: item_id=10 \(first: row 2 of"),
    "interest twice": ({"interests": interests(1, 1)}, r"interests\.interest_id: 1 row\(s\) break the rule duplicate"),
    "unknown interest": (
        {"items": items(10, 20, interests=[[1, 77], [1]])},
        r"items\.interests: 1 row\(s\) break the rule unknown_interest: interests=\[77\], item_id=10",
    ),
    "followed interest unknown": (
        {"user_interests": pa.table({"user_id": [1], "interest_id": [8], "followed_at": pa.array([at(0)], TIME)})},
        r"user_interests\.interest_id: 1 row\(s\) break the rule unknown_interest: interest_id=8",
    ),
    "board of two users": (
        {"boards": boards((7, 1, 10, 5), (7, 2, 20, 5), (8, 1, 10, 5))},
        r"boards\.board_id: 2 row\(s\) break the rule shared_board: board_id=7",
    ),
    "condition of an unknown type": (
        {"events": events(ROW, condition_type=pa.array(["topic"]), condition_id=pa.array([3]))},
        r"events\.condition_type: 1 row\(s\) break the rule bad_condition: condition_type=topic, condition_id=3",
    ),
    "condition without an id": (
        {"events": events(ROW, condition_type=pa.array(["interest"]), condition_id=pa.array([None], pa.int64()))},
        r"condition_type=interest, condition_id=null",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(BAD))
def test_bad_tables_are_refused_by_name(tmp_path, case):
    tables, message = BAD[case]
    with pytest.raises(DataError, match=message) as caught:
        clean(write(tmp_path / "in", **tables), tmp_path)
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_parquet_is_named(tmp_path):
    tables = Path(write(tmp_path / "in"))
    (tables / "events" / "1.parquet").write_bytes(b"not a table")
    with pytest.raises(DataError, match=r"events: .*1\.parquet can't be read as Parquet .*write it again or take it away"):
        clean(str(tables), tmp_path)


def test_a_file_that_is_damaged_inside_is_named(tmp_path):
    tables = Path(write(tmp_path / "in", events=[]))
    rng = np.random.default_rng(0)
    table = events(*[(int(user), 10, minute, "click") for minute, user in enumerate(rng.integers(0, 2**60, 4000))])
    path = tables / "events" / "0.parquet"
    pq.write_table(table, path, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[1000:3000] = bytes(2000)  # some values; the footer, and so the schema, is still whole
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"events: reading .*0\.parquet broke off .*write it again"):
        clean(str(tables), tmp_path)


def test_all_problems_come_in_one_message(tmp_path):
    tables = write(tmp_path / "in", events=events((1, 10, 0, "like"), (None, 10, 0, "click")), items=items(10, 20, 20))
    with pytest.raises(DataError, match=r"3 problem\(s\)") as caught:
        clean(tables, tmp_path)
    assert [rule in str(caught.value) for rule in ("unknown_action", "null_id", "duplicate")] == [True] * 3


def test_nothing_is_left_behind_that_looks_finished(tmp_path):
    tables = write(tmp_path / "in", events=events((1, 10, 0, "like")))
    for _ in range(2):  # the second attempt isn't served by what the first one left
        with pytest.raises(DataError):
            validate(tables, tmp_path)
    failure = storage.read_json(str(tmp_path / "runs" / "test" / "failure.json"))
    assert (failure["step"], failure["exit_code"]) == ("validate_data", 2)
    assert "unknown_action" in failure["message"]


def test_losing_more_than_the_allowed_share_fails(tmp_path):
    # One of four rows has an unknown item: 25 % lost.
    rows = events(ROW, (1, 20, 1, "click"), (2, 10, 1, "click"), (2, 99, 1, "click"))
    tables = write(tmp_path / "in", events=rows)
    assert clean(tables, tmp_path, max_dropped_share=0.25).facts["num_events"] == 3
    with pytest.raises(
        DataError, match=r"events: 1 of 4 rows \(25\.0%\) .*unknown_item \(item_id\) 1, more than data\.max_dropped_share=0\.24"
    ):
        clean(tables, tmp_path, max_dropped_share=0.24)


def test_losing_every_row_fails_whatever_share_is_allowed(tmp_path):
    with pytest.raises(DataError, match="events: all 1 rows were dropped by unknown_item"):
        clean(write(tmp_path / "in", events=events((1, 99, 0, "click"))), tmp_path)


def test_two_places_for_one_table_are_not_guessed_between(tmp_path):
    tables = Path(write(tmp_path / "in"))
    pq.write_table(GOOD["events"], tables / "events.parquet")
    with pytest.raises(DataError, match="which one counts is not ours to guess"):
        clean(str(tables), tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tables": ""}, "data.tables='' names no folder"),
        ({"now": "yesterday"}, "data.now='yesterday' is not an ISO time"),
        ({"memory_limit": "plenty"}, "data.memory_limit='plenty' is refused"),
    ],
)
def test_settings_that_only_show_when_used_are_named(tmp_path, settings, message):
    tables = write(tmp_path / "in")
    with pytest.raises(ConfigError, match=message):
        clean(settings.pop("tables", tables), tmp_path, **settings)


def test_a_scheme_without_driver_is_named(tmp_path):
    with pytest.raises(BadInput, match="nosuch://"):
        clean("nosuch://bucket/tables", tmp_path)
