"""How events become requests, which are held out, and where impressions go."""

from __future__ import annotations

from typing import Any

import pytest

from clrflow.bootstrap.duckdb_engine import DuckdbEngine
from clrflow.bootstrap.requests import cut_into_requests, impressions, positive_events, refuse_without_training, time_cuts
from clrflow.bootstrap.settings import RequestSettings, SplitSettings
from clrflow.errors import DataError
from tests.bootstrap.worlds import World

LAST = SplitSettings(by="last_requests")
MINUTE = 60


def cut(world: World, request: RequestSettings, split: SplitSettings = LAST) -> dict[str, list[dict[str, Any]]]:
    with DuckdbEngine(memory_limit="200MB", scratch=world.folder) as engine:
        events = engine.parquet("events", world.sources()["events"])
        positives = positive_events(events, world.data.actions)
        cuts = time_cuts(engine, positives, split)
        engagements, requests = cut_into_requests(engine, positives, request=request, split=split, cuts=cuts, period_s=86_400)
        refuse_without_training(engine, requests, split, cuts)
        shown = impressions(events, engagements, world.data.actions, gap_minutes=request.session_gap_minutes, cuts=cuts)
        found = {
            "engagements": engine.arrow(engagements.order_by(["user_id", "seq"])).to_pylist(),
            "requests": engine.arrow(requests.order_by(["user_id", "first_seq"])).to_pylist(),
            "impressions": engine.arrow(shown.order_by(["request_id", "item_id"])).to_pylist(),
        }
    number = {row["request_id"]: place for place, row in enumerate(found["requests"])}  # counted through the users, easier to read
    return {name: [{**row, "request_id": number[row["request_id"]]} for row in rows] for name, rows in found.items()}


def of(rows: list[dict[str, Any]], column: str) -> list[Any]:
    return [row[column] for row in rows]


def test_a_request_is_cut_after_max_targets(world: World) -> None:
    for second in range(7):
        world.event(1, 10 + second, 0, second)
    rows = cut(world, RequestSettings(max_targets=2))["engagements"]
    assert of(rows, "request_id") == [0, 0, 1, 1, 2, 2, 3]
    assert of(rows, "position") == [0, 1, 0, 1, 0, 1, 0]


def test_a_pause_longer_than_the_gap_starts_a_request_and_its_count(world: World) -> None:
    # The second comes exactly 30 minutes after the first: not longer. The third comes a second later than that.
    for second in (0, 30 * MINUTE, 60 * MINUTE + 1, 60 * MINUTE + 2, 60 * MINUTE + 3, 200 * MINUTE):
        world.event(1, 10, 0, second)
    assert of(cut(world, RequestSettings(max_targets=2))["engagements"], "request_id") == [0, 0, 1, 1, 2, 3]


def test_midnight_is_a_pause(world: World) -> None:
    for second in (-1, 0, 1, 2):
        world.event(1, 10, 1, second)
    for day in (5, 6):
        world.event(1, 10, day)
    world.event(1, 20, 1, -1, action="impression")
    found = cut(world, RequestSettings())
    assert of(found["engagements"], "request_id") == [0, 1, 1, 1, 2, 3]
    assert of(found["requests"], "day")[1] == of(found["requests"], "day")[0] + 1
    assert [(row["request_id"], row["item_id"]) for row in found["impressions"]] == [(0, 20)]
    found = cut(world, RequestSettings(session_gap_minutes=None, max_targets=2))
    assert of(found["engagements"], "request_id") == [0, 0, 1, 1, 2, 2]


def test_parts_of_days_are_held_out_from_the_newest_event_back(world: World) -> None:
    for day in (0, 8.9, 9.1, 9.4, 9.6, 10):
        world.event(1, 10, day)
    rows = cut(world, RequestSettings(), SplitSettings(by="time", validation_days=0.5, test_days=0.5))["engagements"]
    assert of(rows, "split") == ["train", "train", "validation", "validation", "test", "test"]


def test_without_a_gap_only_the_count_cuts(world: World) -> None:
    for day in range(6):
        world.event(1, 10, day * 100)
    rows = cut(world, RequestSettings(max_targets=2, session_gap_minutes=None))["engagements"]
    assert of(rows, "request_id") == [0, 0, 1, 1, 2, 2]


def test_ties_in_time_keep_the_order_of_the_log(world: World) -> None:
    for order, item in enumerate((9, 3, 7, 1)):
        world.event(1, item, 0, order=order)
    assert of(cut(world, RequestSettings(max_targets=1))["engagements"], "item_id") == [9, 3, 7, 1]


def test_the_last_request_is_test_and_the_one_before_validation(world: World) -> None:
    for day in range(4):
        world.event(1, 10, day)
    world.event(2, 10, 0)  # a user with one event: held out, with nothing to learn from
    rows = cut(world, RequestSettings())["requests"]
    assert of(rows, "split") == ["train", "train", "validation", "test", "test"]
    assert of(rows, "user_id") == [1, 1, 1, 1, 2]


def test_no_request_straddles_a_time_cut_and_splits_follow_each_other(world: World) -> None:
    # The newest event is on day 9, so that is the test day and day 8 validation; one session lies across each cut.
    for day, second in ((0, 0), (8, -1), (8, 0), (8, 1), (9, -1), (9, 0), (9, 1)):
        world.event(1, 10, day, second)
    found = cut(world, RequestSettings(), SplitSettings(by="time"))
    assert of(found["engagements"], "split") == ["train", "train", "validation", "validation", "validation", "test", "test"]
    assert of(found["engagements"], "request_id") == [0, 1, 2, 2, 3, 4, 4]
    by_split = {
        name: [row["timestamp"] for row in found["engagements"] if row["split"] == name] for name in ("train", "validation", "test")
    }
    assert max(by_split["train"]) < min(by_split["validation"])
    assert max(by_split["validation"]) < min(by_split["test"])


def test_ids_beyond_floats_and_below_zero_stay_exact_and_sorted(world: World) -> None:
    users = (2**53 + 1, 2**53, -5, -(2**62))
    for user in users:
        for day in range(3):
            world.event(user, 2**60 + 1, day)
    rows = cut(world, RequestSettings())["requests"]
    assert of(rows, "user_id")[::3] == sorted(users)
    assert of(rows, "request_id") == list(range(12))


def test_negative_actions_are_no_targets_and_unlisted_ones_nothing(world: World) -> None:
    for day in range(3):
        world.event(1, 10, day, action="save")
        world.event(1, 11, day, 1, action="impression")
    rows = cut(world, RequestSettings())["engagements"]
    assert of(rows, "item_id") == [10, 10, 10]
    assert of(rows, "weight") == [2.0, 2.0, 2.0]


def test_an_impression_belongs_to_the_request_around_it_else_the_next_else_the_last(world: World) -> None:
    for day in range(3):
        world.event(1, 10, day + 0.5)
        world.event(1, 11, day + 0.5, 600)
    world.event(1, 20, 1.5, -60, action="impression")  # a minute before the second request
    world.event(1, 21, 1.5, 300, action="impression")  # inside it
    world.event(1, 22, 1.5, 660, action="impression")  # a minute after it
    world.event(1, 23, 1.5, 20_000, action="impression")  # hours from any
    world.event(1, 11, 1.5, 30, action="impression")  # engaged in the same request later
    rows = cut(world, RequestSettings())["impressions"]
    assert [(row["request_id"], row["item_id"]) for row in rows] == [(1, 20), (1, 21), (1, 22)]


def test_an_impression_never_crosses_a_time_cut(world: World) -> None:
    # Validation begins at day 8. What is shown after the cut must not become a negative of the train request just before it.
    for day, second in ((0, 0), (8, -60), (8.5, 0), (9, 0)):
        world.event(1, 10, day, second)
    world.event(1, 20, 8, -30, action="impression")
    world.event(1, 21, 8, 30, action="impression")
    rows = cut(world, RequestSettings(), SplitSettings(by="time"))["impressions"]
    assert [(row["request_id"], row["item_id"]) for row in rows] == [(1, 20)]


def test_a_split_that_leaves_nothing_to_train_on_is_refused_with_the_setting(world: World) -> None:
    world.event(1, 10, 0)
    world.event(1, 10, 0.5)
    with pytest.raises(DataError, match=r"validation_days=1\.0 .* no event before 2025-12-31"):
        cut(world, RequestSettings(), SplitSettings(by="time"))
    with pytest.raises(DataError, match="none of 2 is left to train on"):
        cut(world, RequestSettings(), LAST)


def test_a_log_without_engagements_is_refused(world: World) -> None:
    world.event(1, 10, 0, action="impression")
    with pytest.raises(DataError, match="no row has a positive action"):
        cut(world, RequestSettings(), LAST)


@pytest.mark.parametrize("split", [LAST, SplitSettings(by="time")])
def test_a_log_of_impressions_only_is_refused_with_the_setting_to_check(world: World, split: SplitSettings) -> None:
    world.event(1, 10, 0, action="impression")
    with pytest.raises(DataError, match=r"no row has a positive action.*check data\.actions"):
        cut(world, RequestSettings(), split)
