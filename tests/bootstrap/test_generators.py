"""Conditions and candidates on worlds small enough to work out by hand. Test begins a day before the newest event, at day 10."""

from __future__ import annotations

import pytest

from tests.bootstrap.worlds import World, known

BY_TIME = {"by": "time", "validation_days": 1.0, "test_days": 1.0}
ONLY_INTEREST = {"item": {"enabled": False}, "board": {"enabled": False}}
ONLY_ITEM = {"interest": {"enabled": False}, "board": {"enabled": False}}
ONLY_BOARD = {"interest": {"enabled": False}, "item": {"enabled": False}}


@pytest.fixture
def asked(world: World) -> World:
    """User 20 asks in validation, at day 8.5; somebody else's event at day 10 ends the log."""
    world.event(20, 90, 8.5)
    world.event(99, 90, 10)
    return world


def validation_request(out, user: int = 20) -> dict:  # type: ignore[no-untyped-def, type-arg]
    (request,) = [row for row in out.requests(user) if row["split"] == "validation"]
    return request


def test_an_interest_brings_its_popular_items_then_its_fresh_ones(asked: World) -> None:
    for item, users in ((1, 3), (2, 2), (3, 1)):
        asked.item(item, 7)
        for user in range(users):
            asked.event(user, item, 2)
    asked.item(4, 7, day=8.2)  # made on the day of the request: not known yet
    asked.item(5, 7, day=7)
    asked.item(6, 7, day=6)
    for user in range(5):
        asked.event(user, 3, 8.1)  # held out: must not make item 3 the most popular
    asked.follow(20, 7, 3)
    out = asked.run(split=BY_TIME, **ONLY_INTEREST | {"interest": {"num_candidates": 4, "fresh_share": 0.25}})
    request = validation_request(out)
    assert known(request, "interest") == [7]
    assert out.candidates(request["request_id"], "interest", 7) == [1, 2, 3, 5]


def test_followed_interests_come_first_and_inferred_ones_need_two_items(asked: World) -> None:
    asked.item(1, 5)
    asked.item(2, 5)
    asked.item(3, 6)
    for day, item in enumerate((1, 2, 3)):
        asked.event(20, item, day)
    asked.item(90, 8)
    asked.follow(20, 9, 3)
    asked.follow(20, 4, 8.2)  # on the day of the request: not known yet
    out = asked.run(split=BY_TIME, **ONLY_INTEREST)
    assert known(validation_request(out), "interest") == [9, 5]


def test_of_two_interests_of_equal_share_the_rarer_on_the_site_comes_first(asked: World) -> None:
    asked.item(1, 5, 6)
    asked.item(2, 5, 6)
    asked.item(3, 5)
    for day, item in enumerate((1, 2)):
        asked.event(20, item, day)
    for user in range(8):
        asked.event(user, 3, 1)  # the site is full of interest 5
    out = asked.run(split=BY_TIME, **ONLY_INTEREST)
    assert known(validation_request(out), "interest") == [6, 5]


def test_an_item_brings_what_was_engaged_beside_it(asked: World) -> None:
    # Item 1 was engaged five times, 2 twice, the others once. It stands beside 2 twice, 2/sqrt((5+10)·(2+10)), and beside 3 and 31 to 35 once,
    # 1/sqrt((5+10)·(1+10)). 4 is six steps away from 1, beyond the window of five.
    for user in (10, 11):
        asked.event(user, 1, 2)
        asked.event(user, 2, 2, 60)
    asked.event(12, 1, 2)
    asked.event(12, 3, 2, 60)
    for step, item in enumerate((1, 31, 32, 33, 34, 35, 4)):
        asked.event(13, item, 2, step)
    asked.event(14, 1, 8.2)
    asked.event(14, 5, 8.2, 60)  # held out
    asked.event(20, 1, 5)
    out = asked.run(split=BY_TIME, **ONLY_ITEM)
    request = validation_request(out)
    assert known(request, "item") == [1]
    assert request["conditions"][0]["items"] == [1]
    (row,) = [row for row in out.rows("candidates") if row["request_id"] == request["request_id"]]
    assert row["items"] == [2, 3, 31, 32, 33, 34, 35]
    assert row["scores"] == pytest.approx([2 / (15 * 12) ** 0.5] + [1 / (15 * 11) ** 0.5] * 6, rel=1e-6)


def test_a_board_brings_what_lies_beside_its_items_on_other_boards(asked: World) -> None:
    # From item 1: boards 100, 200, 300 with 1/3 each; 200 → {1, 2}, 300 → {1, 3}. Both 2 and 3 are reached with 1/6, but 3 lies on two boards
    # and counts 1/6/sqrt(2). Item 9 lies beside 3 only, and 1 is the board's own.
    asked.add_to_board(100, 20, 1, 1)
    for board, items in ((200, (1, 2)), (300, (1, 3)), (400, (3, 9))):
        for item in items:
            asked.add_to_board(board, 10, item, 2)
    asked.add_to_board(500, 11, 1, 8.1)
    asked.add_to_board(500, 11, 8, 8.1)  # on the day of the request: not in the graph
    asked.event(10, 90, 1)
    out = asked.run(split=BY_TIME, **ONLY_BOARD)
    request = validation_request(out)
    assert known(request, "board") == [100]
    assert out.candidates(request["request_id"], "board", 100) == [2, 3]
    (row,) = [row for row in out.rows("candidates") if row["request_id"] == request["request_id"]]
    assert row["scores"] == pytest.approx([1 / 6, 1 / 6 / 2**0.5], rel=1e-6)


def test_active_boards_are_those_with_the_newest_additions_and_show_their_newest_items_last(asked: World) -> None:
    for board, days in ((101, (1, 2)), (102, (3, 8.4)), (103, (4,)), (104, (9,))):
        for place, day in enumerate(days):
            asked.add_to_board(board, 20, board * 10 + place, day)
    asked.add_to_board(102, 20, 1029, 8.6)  # after the request
    asked.event(10, 90, 1)
    out = asked.run(split=BY_TIME, **ONLY_BOARD | {"board": {"max_conditions": 2, "recent_items": 2}})
    request = validation_request(out)
    assert known(request, "board") == [102, 103]
    assert [one["items"] for one in request["conditions"] if one["role"] == "known"] == [[1020, 1021], [1030]]
    scores = [one["score"] for one in request["conditions"] if one["role"] == "known"]
    assert scores == sorted(scores, reverse=True)


def test_user_states_know_everything_up_to_the_end(asked: World) -> None:
    asked.event(10, 90, 1)
    asked.add_to_board(104, 20, 1, 9)
    out = asked.run(split=BY_TIME, **ONLY_BOARD)
    (state,) = [row for row in out.rows("user_states") if row["user_id"] == 20]
    assert state["history_items"] == [90]
    assert [(one["type"], one["id"], one["items"]) for one in state["conditions"]] == [("board", 104, [1])]
