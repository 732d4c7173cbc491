"""What validate_data makes of good tables: clean, sorted, complete ones, and counts of what it left out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clrflow.config import PipelineConfig
from clrflow.contracts import TIME
from clrflow.data.settings import DataSettings
from clrflow.data.tables import open_dataset, read_table
from clrflow.data.validate import check, source_fingerprint
from clrflow.errors import DataError
from clrflow.steps import Run
from tests.data.helpers import GOOD, at, boards, clean, events, interests, items, validate, write


def test_equal_input_gives_equal_bytes(tmp_path):
    tables = write(tmp_path / "in")
    one, other = clean(tables, tmp_path / "a"), clean(tables, tmp_path / "b")
    assert one.facts == other.facts
    assert {name: out.fingerprint for name, out in one.outputs.items()} == {name: out.fingerprint for name, out in other.outputs.items()}


def test_ids_above_2_to_the_53_and_negative_ones_survive_exactly(tmp_path):
    large, smallest = 2**53 + 1, -(2**63)
    rows = events((large, smallest, 0, "click"), (-5, large + 2, 1, "click"), (None, large, 2, "click"))
    tables = write(tmp_path / "in", events=rows, items=items(smallest, large, large + 2), boards=boards((large + 4, -5, large, 3)))
    outcome = clean(tables, tmp_path, null_id="drop")
    assert outcome.rows("events", "user_id", "item_id") == [(-5, large + 2), (large, smallest)]
    assert outcome.rows("items", "item_id") == [(smallest,), (large,), (large + 2,)]
    assert outcome.rows("boards", "board_id", "item_id") == [(large + 4, large)]
    assert outcome.facts["dropped"] == {"events.null_id": 1}


def test_every_output_is_there_with_all_columns_when_the_input_lacks_optional_tables(tmp_path):
    outcome = clean(write(tmp_path / "in", boards=None, interests=None), tmp_path)
    assert set(outcome.outputs) == {"events", "items", "boards", "user_interests", "interests", "days"}
    assert outcome.rows("boards", "board_id", "user_id", "item_id", "added_at", "name") == []
    assert outcome.rows("user_interests", "user_id", "interest_id", "followed_at") == []
    # Without a table of interests, the ids that items carry are the interests.
    assert outcome.rows("interests", "interest_id", "name") == [(1, "interest 1")]
    assert outcome.rows("events", "generator", "condition_id", "position") == [(None, None, None)] * 3


def test_items_are_sorted_with_embeddings_of_fixed_width_and_tidy_interests(tmp_path):
    table = items(20, 10, 30, interests=[[2, 1, 2, None], None, []], embeddings=[[1.0, 0.0], [0.5, 2.0], [0.0, -1.0]])
    outcome = clean(write(tmp_path / "in", items=table, interests=interests(1, 2)), tmp_path)
    assert outcome.rows("items", "item_id", "interests") == [(10, []), (20, [2, 1]), (30, [])]
    found = read_table(outcome.outputs["items"].uri)
    assert found.schema.field("content_embedding").type == pa.list_(pa.float32(), 2)
    assert found["content_embedding"].to_pylist() == [[0.5, 2.0], [1.0, 0.0], [0.0, -1.0]]


def test_spellings_that_lose_nothing_are_read_as_the_contract_says(tmp_path):
    first = pa.table(
        {
            "user_id": pa.array([1], pa.int32()),
            "item_id": pa.array([10], pa.uint64()),
            "timestamp": pa.array([at(1).replace(tzinfo=None)], pa.timestamp("ns")),  # no timezone: UTC
            "action": pa.array(["click"], pa.large_string()),
        }
    )
    second = pa.table(
        {
            "action": pa.array(["click"]).dictionary_encode(),  # columns are found by name, not by place
            "timestamp": pa.array([at(2)], pa.timestamp("s", tz="America/New_York")),
            "user_id": pa.array([1], pa.int64()),
            "item_id": pa.array([20], pa.int16()),
            "surplus": pa.array([1.5]),
        }
    )
    third = pa.table({"user_id": pa.array([1]), "item_id": pa.array([10]), "timestamp": pa.array([at(1440).date()]), "action": ["click"]})
    wide = items(10, 20).set_column(3, "content_embedding", pa.array([[1.0, 2.0], [0.0, 1.0]], pa.list_(pa.float64(), 2)))
    outcome = clean(write(tmp_path / "in", events=[first, second, third], items=wide), tmp_path)
    assert outcome.rows("events", "item_id", "timestamp") == [(10, at(1)), (20, at(2)), (10, at(1440))]
    assert outcome.facts["ignored_columns"] == {"events": ["surplus"]}


def test_rows_that_a_policy_drops_are_counted_by_the_first_rule_they_break(tmp_path):
    rows = events(
        (1, 10, 0, "click"),
        (1, 99, 1, "click"),  # unknown item
        (1, 99, 2, "wave"),  # unknown action, before unknown item in the order of rules
        (None, 10, 3, "click"),
        (1, 10, 60 * 24 * 40, "click"),  # 10 February, after now
    )
    table = items(10, 20, 30, embeddings=[[1.0, 2.0], [0.0, 0.0], [1.0, float("nan")]])
    outcome = clean(
        write(tmp_path / "in", events=rows, items=table),
        tmp_path, null_id="drop", unknown_action="drop", future_event="drop", bad_embedding="drop",
    )  # fmt: skip
    assert outcome.facts["dropped"] == {
        "items.bad_embedding": 2, "events.null_id": 1, "events.unknown_action": 1, "events.future_event": 1, "events.unknown_item": 1,
    }  # fmt: skip
    assert outcome.rows("events", "item_id", "timestamp") == [(10, at(0))]


def test_the_window_is_whole_days_back_from_that_of_the_newest_event(tmp_path):
    day = 60 * 24
    rows = events((1, 10, day - 1, "click"), (1, 20, day, "click"), (2, 10, 3 * day, "click"))
    outcome = clean(write(tmp_path / "in", events=rows), tmp_path, window_days=3)
    assert outcome.rows("events", "timestamp") == [(at(day),), (at(3 * day),)]
    assert outcome.facts["outside_window"] == 1
    assert outcome.facts["dropped"] == {}
    assert outcome.facts["first_event"] == "2025-01-02T00:00:00+00:00"


def test_facts_and_report_tell_what_is_there(tmp_path):
    rows = events((1, 10, 0, "click"), (1, 20, 1, "save"), (2, 10, 2, "click"), (2, 10, 2, "click"))
    outcome = validate(write(tmp_path / "in", events=rows), tmp_path)
    facts = outcome.manifest.facts
    numbers = ("num_users", "num_items", "num_events", "num_interests", "num_boards", "embedding_dim")
    assert [facts[name] for name in numbers] == [2, 2, 3, 1, 1, 2]
    assert outcome.scalars()["num_users"] == 2.0
    assert outcome.scalars()["dropped_events_duplicate"] == 1.0
    html = Path(outcome.manifest.report_uri).read_text()
    assert "unknown_action" in html
    assert "nothing is published yet" in html
    # Broken rules, events a day, users a day, tails, norms, interests.
    assert html.count("<img") == 6


def test_changed_data_get_a_new_key_and_equal_data_are_found(tmp_path):
    tables = write(tmp_path / "in")
    first = validate(tables, tmp_path, now="")
    assert validate(tables, tmp_path, now="").reused  # the clock went on in between
    rows = pq.read_table(tmp_path / "in" / "events" / "0.parquet")
    pq.write_table(rows.slice(0, 2), tmp_path / "in" / "events" / "0.parquet")
    second = validate(tables, tmp_path, now="")
    assert not second.reused
    assert second.uri != first.uri
    assert second.manifest.facts["num_events"] == 2


@pytest.mark.parametrize("name", list(GOOD))
def test_the_fingerprint_of_the_source_sees_every_table(tmp_path, name):
    run = Run(name="test", workspace=str(tmp_path), config=PipelineConfig(data=DataSettings(tables=write(tmp_path / "in"))))
    before = source_fingerprint(run)
    assert source_fingerprint(run) == before
    path = tmp_path / "in" / name / "0.parquet"
    pq.write_table(pa.concat_tables([GOOD[name], GOOD[name]]), path)
    assert source_fingerprint(run) != before


def test_the_fingerprint_of_a_folder_that_is_not_there_is_refused(tmp_path):
    run = Run(name="test", workspace=str(tmp_path), config=PipelineConfig(data=DataSettings(tables=str(tmp_path / "nowhere"))))
    with pytest.raises(DataError, match=r"nowhere.*does not exist.*clrflow data movielens"):
        source_fingerprint(run)


def test_a_table_may_be_one_file_instead_of_a_folder(tmp_path):
    tables = Path(write(tmp_path / "in"))
    (tables / "events" / "0.parquet").rename(tables / "events.parquet")
    (tables / "events").rmdir()
    assert clean(str(tables), tmp_path).facts["num_events"] == 3


def test_check_counts_like_the_step_and_writes_nothing(tmp_path, capsys):
    rows = events((1, 10, 0, "click"), (1, 10, 0, "click"), (1, 99, 0, "click"))
    tables = write(tmp_path / "in", events=rows)
    before = sorted(tmp_path.rglob("*"))
    counts = {(table, rule): count for table, rule, _, count in check(tables, DataSettings(max_dropped_share=1.0))}
    assert counts["events", "rows read"] == 3
    assert counts["events", "unknown_item (item_id)"] == 1
    assert counts["events", "duplicate (user_id)"] == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert "unknown_item" in capsys.readouterr().out


def test_one_huge_row_group_is_cut_into_small_ones(tmp_path):
    # 140,000 rows in one row group come out in groups of at most 131,072, in order.
    count = 140_000
    times = pa.array(range(count), pa.int64()).cast(pa.timestamp("us")).cast(TIME)
    table = pa.table(
        {"user_id": pa.array([1] * count), "item_id": pa.array([10] * count), "timestamp": times, "action": pa.array(["click"] * count)}
    )
    place = tmp_path / "in"
    write(place, events=[])
    pq.write_table(table, place / "events" / "0.parquet", row_group_size=count)
    outcome = clean(str(place), tmp_path)
    (file,) = open_dataset(outcome.outputs["events"].uri).files
    metadata = pq.ParquetFile(file).metadata
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [131_072, 8_928]
    found = read_table(outcome.outputs["events"].uri, ["timestamp"])["timestamp"].cast(pa.int64()).to_pylist()
    assert found == list(range(count))
