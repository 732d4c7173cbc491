"""What each rule does under each policy that a team may choose."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from clrflow.errors import DataError
from tests.data.helpers import GOOD, at, boards, clean, events, follows, interests, items, write

ROW = (1, 10, 0, "click")


def condition(kind: str | None, number: int | None) -> pa.Table:
    """One sound event and one that logs a condition."""
    return events(ROW, (1, 20, 1, "click"), condition_type=pa.array([None, kind]), condition_id=pa.array([None, number], pa.int64()))


DROPPED: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, int]]] = {
    "a board of two users": (
        {"boards": boards((7, 1, 10, 5), (7, 2, 20, 5), (8, 1, 10, 5))}, {"shared_board": "drop"}, {"boards.shared_board": 2},
    ),
    "an embedding of another width": (
        {"items": items(10, 20, 30, embeddings=[[1.0, 2.0], [2.0, 1.0], [1.0]])}, {"embedding_width": "drop"}, {"items.embedding_width": 1},
    ),
    "an item twice": ({"items": items(10, 20, 10)}, {"duplicate_id": "drop"}, {"items.duplicate": 1}),
    "an interest twice": ({"interests": interests(1, 1)}, {"duplicate_id": "drop"}, {"interests.duplicate": 1}),
    "an item with an unknown interest": (
        {"items": items(10, 20, 30, interests=[[1], [1], [1, 8]])}, {"unknown_interest": "drop"}, {"items.unknown_interest": 1},
    ),
    "an unknown interest that is followed": (
        {"user_interests": follows((1, 1, 0), (1, 8, 0))}, {"unknown_interest": "clear"}, {"user_interests.unknown_interest": 1},
    ),
    "a condition of an unknown type": ({"events": condition("topic", 3)}, {"bad_condition": "drop"}, {"events.bad_condition": 1}),
    "a condition that the tables lack": ({"events": condition("item", 99)}, {"unknown_condition": "drop"}, {"events.unknown_condition": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", list(DROPPED))
def test_drop_leaves_the_row_out_and_counts_it(tmp_path, case):
    tables, settings, dropped = DROPPED[case]
    outcome = clean(write(tmp_path / "in", **tables), tmp_path, **settings)
    assert outcome.facts["dropped"] == dropped
    assert outcome.facts["cleared"] == {}
    ((name, count),) = dropped.items()
    table = name.split(".")[0]
    assert outcome.outputs[table].num_rows == tables[table].num_rows - count


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"events": events(ROW, ROW)}, r"events\.user_id: 1 row\(s\) break the rule duplicate: .*item_id=10.*data\.duplicate_row=drop"),
        ({"boards": boards((7, 1, 10, 5), (7, 1, 10, 6))}, r"boards\.board_id: 1 row\(s\) break the rule duplicate"),
        ({"user_interests": follows((1, 1, 0), (1, 1, 5))}, r"user_interests\.user_id: 1 row\(s\) break the rule duplicate"),
    ],
)
def test_duplicate_rows_can_be_refused(tmp_path, tables, message):
    with pytest.raises(DataError, match=message):
        clean(write(tmp_path / "in", **tables), tmp_path, duplicate_row="reject")


@pytest.mark.parametrize(("kind", "number"), [("topic", 3), ("interest", None), (None, 3)])
def test_clear_keeps_an_event_without_its_bad_condition(tmp_path, kind, number):
    outcome = clean(write(tmp_path / "in", events=condition(kind, number)), tmp_path, bad_condition="clear")
    assert outcome.rows("events", "item_id", "condition_type", "condition_id") == [(10, None, None), (20, None, None)]
    assert outcome.facts["cleared"] == {"events.bad_condition": 1}
    assert outcome.facts["dropped"] == {}


def test_a_logged_condition_that_the_clean_tables_lack_is_cleared_by_default(tmp_path):
    kinds = ["item", "interest", "item", "interest", "board", "none"]
    rows = [(1, 10, minute, "click") for minute in range(6)]
    log = events(*rows, condition_type=pa.array(kinds), condition_id=pa.array([20, 1, 99, 99, 99, None], pa.int64()))
    outcome = clean(write(tmp_path / "in", events=log), tmp_path)
    # Boards may be logged without a table of them, so what they hold decides nothing.
    assert outcome.rows("events", "condition_type", "condition_id") == [
        ("item", 20), ("interest", 1), (None, None), (None, None), ("board", 99), ("none", None),
    ]  # fmt: skip
    assert outcome.facts["cleared"] == {"events.unknown_condition": 2}
    with pytest.raises(
        DataError, match=r"unknown_condition: condition_type=item, condition_id=99; condition_type=interest, condition_id=99"
    ):
        clean(write(tmp_path / "again", events=log), tmp_path, unknown_condition="reject")


def test_a_cleared_row_still_meets_the_other_rules(tmp_path):
    log = events((1, 99, 0, "click"), (1, 20, 1, "click"), condition_type=pa.array(["topic", "topic"]), condition_id=pa.array([3, 3]))
    outcome = clean(write(tmp_path / "in", events=log), tmp_path, bad_condition="clear")
    assert outcome.facts["dropped"] == {"events.unknown_item": 1}
    assert outcome.facts["cleared"] == {"events.bad_condition": 1}


def test_clear_takes_unknown_interests_out_of_an_item_and_keeps_the_others_in_their_order(tmp_path):
    table = items(10, 20, 30, interests=[[3, 9, 1, 3], [9], None])
    outcome = clean(write(tmp_path / "in", items=table, interests=interests(1, 2, 3)), tmp_path, unknown_interest="clear")
    assert outcome.rows("items", "item_id", "interests") == [(10, [3, 1]), (20, []), (30, [])]
    assert outcome.facts["cleared"] == {"items.unknown_interest": 2}


def test_of_an_item_that_stands_twice_the_newest_row_stays(tmp_path):
    table = items(10, 10, 10, 20).set_column(1, "created_at", pa.array([at(1), at(9), at(5), at(0)], pa.timestamp("us", tz="UTC")))
    outcome = clean(write(tmp_path / "in", items=table), tmp_path, duplicate_id="drop")
    assert outcome.rows("items", "item_id", "created_at") == [(10, at(9)), (20, at(0))]


def test_a_misspelt_column_can_be_refused_with_the_one_that_was_meant(tmp_path):
    tables = write(tmp_path / "in", events=events(ROW, event_oder=pa.array([1])))
    assert clean(tables, tmp_path).facts["ignored_columns"] == {"events": ["event_oder"]}
    with pytest.raises(
        DataError, match=r"events\.event_oder: the contract doesn't know the column, which 1 file\(s\) have \(did you mean event_order\?\)"
    ):
        clean(tables, tmp_path, extra_columns="reject")


def test_an_optional_column_that_some_files_lack_is_told_or_refused(tmp_path):
    tables = write(tmp_path / "in", events=[GOOD["events"], events((3, 10, 9, "click"), board_id=pa.array([7]))])
    outcome = clean(tables, tmp_path)
    assert outcome.facts["partial_columns"] == {"events": ["board_id"]}
    assert outcome.rows("events", "user_id", "board_id") == [(1, None), (1, None), (2, None), (3, 7)]
    with pytest.raises(DataError, match=r"events\.board_id: the optional column is missing in 1 of 2 files.*data\.partial_columns=ignore"):
        clean(tables, tmp_path, partial_columns="reject")
