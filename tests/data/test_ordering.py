"""The order of clean events and their days: by what the rows say, never by how they lay in the files."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clrflow import storage
from clrflow.contracts import TIME
from clrflow.data.ordering import Places
from clrflow.data.tables import read_table
from tests.data.helpers import Clean, at, boards, clean, events, follows, interests, items, write

A_DAY = 60 * 24


def days(outcome: Clean, table: str = "events") -> dict[datetime.date, tuple[int, str]]:
    """Rows and fingerprint of each day of a table."""
    rows = outcome.rows("days", "table", "day", "num_rows", "fingerprint")
    return {day: (num_rows, fingerprint) for name, day, num_rows, fingerprint in rows if name == table}


def bytes_of(outcome: Clean) -> dict[str, str]:
    return {name: storage.fingerprint(output.uri) for name, output in outcome.outputs.items()}


class TestTies:
    def test_follow_the_order_that_the_log_gives(self, tmp_path):
        rows = events(
            (1, 10, 5, "click"), (1, 20, 5, "click"), (1, 30, 5, "save"), (1, 10, 3, "click"), event_order=pa.array([70, 30, 50, 90])
        )
        outcome = clean(write(tmp_path / "in", events=rows, items=items(10, 20, 30)), tmp_path)
        # Minute 3 comes first whatever its number; the three of minute 5 lie as 30 < 50 < 70.
        assert outcome.rows("events", "item_id", "event_order") == [(10, 0), (20, 0), (30, 1), (10, 2)]

    def test_without_a_given_order_come_after_those_with_one(self, tmp_path):
        rows = events((1, 10, 5, "click"), (1, 20, 5, "click"), (1, 30, 5, "click"), event_order=pa.array([None, 8, 9]))
        outcome = clean(write(tmp_path / "in", events=rows, items=items(10, 20, 30)), tmp_path)
        assert outcome.rows("events", "item_id") == [(20,), (30,), (10,)]

    @pytest.mark.parametrize("pair", [(1, 2), (10, 20), (5, -7), (2**53 + 1, 2**53 + 2), (-(2**63), 2**63 - 1)])
    def test_of_any_two_items_lie_either_way_round_about_as_often(self, tmp_path, pair):
        # 400 users who did both at once: 200 of each order are expected, and 40 away from it is four standard deviations.
        rows = [(user, item, 5, "click") for user in range(1000, 1400) for item in pair]
        outcome = clean(write(tmp_path / "in", events=events(*rows), items=items(*pair)), tmp_path)
        first = [item for item, place in outcome.rows("events", "item_id", "event_order") if place == 0]
        assert abs(first.count(pair[0]) - 200) < 40

    def test_keep_their_places_when_the_window_moves_and_files_are_renamed(self, tmp_path):
        old = [(1, item, 0, "click") for item in range(1, 40)]
        new = [(user, item, 3 * A_DAY, "click") for user in (1, 2) for item in range(1, 40)]
        catalogue = items(*range(1, 40))
        one = clean(write(tmp_path / "a", events=[events(*old), events(*new)], items=catalogue), tmp_path / "one")
        other = clean(write(tmp_path / "b", events=[events(*new), events(*old)], items=catalogue), tmp_path / "other", window_days=2)
        columns = ("user_id", "timestamp", "item_id", "event_order")
        assert [row for row in one.rows("events", *columns) if row[1] != at(0)] == other.rows("events", *columns)
        assert max(row[3] for row in other.rows("events", *columns)) == 38

    def test_are_numbered_alike_however_the_rows_are_cut(self):
        user_ids, times = np.repeat([1, 2, 5], [4, 1, 6]), np.array([7, 7, 7, 8, 8, 1, 1, 1, 1, 2, 2])
        whole = [0, 1, 2, 0, 0, 0, 1, 2, 3, 0, 1]
        for first in range(1, 10):
            for second in range(first + 1, 11):
                places = Places()
                parts = [places.of(user_ids[a:b], times[a:b]) for a, b in ((0, first), (first, second), (second, 11))]
                assert np.concatenate(parts).tolist() == whole


class TestDuplicates:
    def test_keep_the_first_by_content_and_are_counted(self, tmp_path):
        rows = events((1, 10, 0, "click"), (1, 10, 0, "click"), (1, 10, 0, "save"), (1, 10, 0, "click"), board_id=pa.array([8, 5, 7, 6]))
        outcome = clean(write(tmp_path / "in", events=rows, boards=boards((7, 1, 10, 5), (7, 1, 10, 4))), tmp_path)
        assert outcome.facts["dropped"] == {"events.duplicate": 2, "boards.duplicate": 1}
        assert outcome.rows("events", "action", "board_id", "event_order") == [("click", 5, 0), ("save", 7, 1)]
        assert outcome.rows("boards", "added_at") == [(at(4),)]

    def test_a_row_with_another_fault_does_not_take_the_place_of_a_sound_one(self, tmp_path):
        rows = events((1, 10, 0, "click"), (1, 10, 0, "click"), board_id=pa.array([1, 2]), condition_type=pa.array(["topic", None]))
        outcome = clean(write(tmp_path / "in", events=rows), tmp_path, bad_condition="drop")
        assert outcome.rows("events", "board_id") == [(2,)]
        assert outcome.facts["dropped"] == {"events.bad_condition": 1}


def busy_tables() -> dict[str, pa.Table]:
    """Three days with ties, duplicates that differ in other columns, and rows that rules drop."""
    rng = np.random.default_rng(0)
    count = 600
    rows = [
        (int(u), int(i), int(m) * 360, "click")
        for u, i, m in zip(rng.integers(1, 9, count), rng.integers(1, 40, count), rng.integers(0, 12, count))
    ]
    log = events(
        *rows,
        board_id=pa.array(rng.integers(0, 3, count)),
        condition_type=pa.array(["board"] * count),
        condition_id=pa.array(rng.integers(-3, 3, count)),
        event_order=pa.array(rng.integers(0, 3, count), mask=rng.random(count) < 0.7),
    )
    kept = [(int(b), int(u), int(i), int(m)) for b, u, i, m in zip(*(rng.integers(1, high, 80) for high in (9, 2, 30, 9)))]
    followed = [(int(u), int(i), int(m)) for u, i, m in zip(*(rng.integers(1, high, 80) for high in (9, 3, 9)))]
    return {
        "events": log, "items": items(*range(1, 36), interests=[[1, 2]] * 35), "boards": boards(*kept), "user_interests": follows(*followed),
        "interests": interests(1, 2),
    }  # fmt: skip


class TestShuffledInput:
    def test_rows_and_files_in_another_order_give_equal_bytes(self, tmp_path):
        tables, rng = busy_tables(), np.random.default_rng(1)

        def shuffled(table: pa.Table) -> list[pa.Table]:
            mixed = table.take(pa.array(rng.permutation(len(table))))
            cut = sorted(rng.integers(0, len(table), 2).tolist())
            return [mixed.slice(0, cut[0]), mixed.slice(cut[0], cut[1] - cut[0]), mixed.slice(cut[1])]

        one = clean(write(tmp_path / "a", **tables), tmp_path / "one")
        assert one.facts["dropped"]["events.duplicate"] > 10
        assert one.facts["dropped"]["events.unknown_item"] > 10
        assert one.facts["dropped"]["boards.duplicate"] > 1
        for attempt in range(3):
            other = clean(
                write(tmp_path / f"b{attempt}", **{name: shuffled(table) for name, table in tables.items()}), tmp_path / f"other{attempt}"
            )
            assert bytes_of(other) == bytes_of(one)
            assert other.facts == one.facts

    def test_sorting_days_together_or_alone_gives_equal_bytes(self, tmp_path, monkeypatch):
        tables = write(tmp_path / "in", **busy_tables())
        together = clean(tables, tmp_path / "together")
        monkeypatch.setattr("clrflow.data.clean.ROWS_PER_SORT", 1)
        assert bytes_of(clean(tables, tmp_path / "alone")) == bytes_of(together)

    def test_events_of_later_days_change_nothing_on_earlier_ones(self, tmp_path):
        tables = busy_tables()
        whole = clean(write(tmp_path / "all", **tables), tmp_path / "whole")
        log = tables["events"]
        early = log.filter(pa.array([time < at(2 * A_DAY) for time in log["timestamp"].to_pylist()]))
        part = clean(write(tmp_path / "early", **{**tables, "events": early}), tmp_path / "part")
        assert sorted(days(part)) == sorted(days(whole))[:2]
        for day in days(part):
            folder = f"day={day}"
            assert storage.fingerprint(f"{part.outputs['events'].uri}/{folder}") == storage.fingerprint(
                f"{whole.outputs['events'].uri}/{folder}"
            )
            assert days(part)[day] == days(whole)[day]


class TestDays:
    def test_are_folders_by_utc_date_without_a_column_for_it(self, tmp_path):
        # The last microsecond of the first of January, and midnight.
        rows = events((2, 10, 0, "click"), (1, 10, 0, "click"), (1, 20, 0, "click"))
        times = pa.array([at(A_DAY), at(A_DAY) - datetime.timedelta(microseconds=1), at(A_DAY)], TIME)
        outcome = clean(write(tmp_path / "in", events=rows.set_column(2, "timestamp", times)), tmp_path)
        uri = Path(outcome.outputs["events"].uri)
        assert [str(path.relative_to(uri)) for path in sorted(uri.rglob("*.parquet"))] == [
            "day=2025-01-01/part-00000.parquet",
            "day=2025-01-02/part-00000.parquet",
        ]
        assert "day" not in pq.read_schema(uri / "day=2025-01-01" / "part-00000.parquet").names
        assert outcome.rows("events", "user_id", "item_id") == [(1, 10), (1, 20), (2, 10)]  # days ascending, then users
        assert {day: num_rows for day, (num_rows, _) in days(outcome).items()} == {
            datetime.date(2025, 1, 1): 1,
            datetime.date(2025, 1, 2): 2,
        }

    def test_are_listed_for_every_table_with_a_time(self, tmp_path):
        old = items(10, 20).set_column(1, "created_at", pa.array([datetime.datetime(1922, 5, 5, tzinfo=datetime.UTC), at(0)], TIME))
        tables = write(tmp_path / "in", items=old, boards=boards((7, 1, 10, 0), (7, 1, 20, A_DAY)), user_interests=follows((1, 1, A_DAY)))
        outcome = clean(tables, tmp_path)
        first, second = datetime.date(2025, 1, 1), datetime.date(2025, 1, 2)
        listed = [row[:3] for row in outcome.rows("days", "table", "day", "num_rows")]
        assert sorted(listed) == [
            ("boards", first, 1), ("boards", second, 1), ("events", first, 3), ("items", datetime.date(1922, 5, 5), 1), ("items", first, 1),
            ("user_interests", second, 1),
        ]  # fmt: skip

    def test_keep_their_fingerprint_while_their_rows_stay(self, tmp_path):
        first, second = (1, 10, 0, "click"), (1, 20, A_DAY, "click")
        before = days(clean(write(tmp_path / "a", events=events(first, second)), tmp_path / "one"))
        after = days(clean(write(tmp_path / "b", events=events(first, (2, 20, A_DAY, "click"))), tmp_path / "other"))
        assert before[datetime.date(2025, 1, 1)] == after[datetime.date(2025, 1, 1)]
        assert before[datetime.date(2025, 1, 2)] != after[datetime.date(2025, 1, 2)]

    @pytest.mark.parametrize(
        "change",
        [
            {"event_order": pa.array([1, 0])},  # two rows swap values: a sum or an xor of columns wouldn't see it
            {"position": pa.array([2, 1], pa.int32())},
            {"position": pa.array([None, 2], pa.int32())},
            {"generator": pa.array(["b", "a"])},
        ],
    )
    def test_have_another_fingerprint_when_two_rows_swap_a_value(self, tmp_path, change):
        def log(**columns: Any) -> pa.Table:
            known = {
                "event_order": pa.array([0, 1]),
                "position": pa.array([1, 2], pa.int32()),
                "generator": pa.array(["a", "b"]),
                **columns,
            }
            return events((1, 10, 0, "click"), (1, 20, 0, "click"), **known)

        before = days(clean(write(tmp_path / "a", events=log()), tmp_path / "one"))
        after = days(clean(write(tmp_path / "b", events=log(**change)), tmp_path / "other"))
        assert before != after

    def test_of_a_former_attempt_do_not_stay(self, tmp_path):
        tables = write(tmp_path / "in", events=events((1, 10, 0, "click"), (1, 20, A_DAY, "click")))
        clean(tables, tmp_path)
        again = clean(write(tmp_path / "in2", events=events((1, 20, A_DAY, "click"))), tmp_path)
        assert read_table(again.outputs["events"].uri).num_rows == 1
