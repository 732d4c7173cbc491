"""Conditions and candidates on a world small enough to work out by hand.

The newest event is on day 9, so that is the test day and day 8 validation, and users ask at day 8.5. Each scenario has users, items and interests of its own.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.bootstrap.worlds import Outcome, World, known

POPULAR, INFERS, RARE, NEIGHBOURS, WALKS, ACTIVE = 20, 21, 22, 23, 24, 25
QUIET = 99
"""An item without interests."""


def _interests(world: World) -> None:
    for item, users in ((1, 3), (2, 2), (3, 1)):
        world.item(item, 7)
        for user in range(100, 100 + users):
            world.event(user, item, 2)
    world.item(4, 7, day=8.2)  # made on the day of the request: not known yet
    world.item(5, 7, day=7)
    world.item(6, 7, day=6)
    for user in range(200, 205):
        world.event(user, 3, 8.1)  # held out: must not make item 3 the most popular
    world.follow(POPULAR, 7, 3)

    for item, interest in ((11, 15), (12, 15), (13, 16)):
        world.item(item, interest)
        world.event(INFERS, item, item - 11)
    world.follow(INFERS, 19, 3)
    world.follow(INFERS, 14, 8.2)  # on the day of the request: not known yet

    world.item(21, 25, 26)
    world.item(22, 25, 26)
    world.item(23, 25)
    for day, item in enumerate((21, 22)):
        world.event(RARE, item, day)
    for user in range(300, 308):
        world.event(user, 23, 1)  # the site is full of interest 25


def _neighbours(world: World) -> None:
    for user in (400, 401):
        world.event(user, 31, 2)
        world.event(user, 32, 2, 60)
    world.event(402, 31, 2)
    world.event(402, 33, 2, 60)
    for step, item in enumerate((31, 41, 42, 43, 44, 45, 34)):
        world.event(403, item, 2, step)
    world.event(404, 31, 8.2)
    world.event(404, 35, 8.2, 60)  # held out
    world.event(NEIGHBOURS, 31, 5)


def _boards(world: World) -> None:
    world.add_to_board(100, WALKS, 51, 1)
    for board, items in ((200, (51, 52)), (300, (51, 53)), (400, (53, 59))):
        for item in items:
            world.add_to_board(board, 10, item, 2)
    world.add_to_board(500, 11, 51, 8.1)
    world.add_to_board(500, 11, 58, 8.1)  # on the day of the request: not in the graph

    for board, days in ((101, (1, 2)), (102, (3, 8.4)), (103, (4,)), (104, (9,))):
        for place, day in enumerate(days):
            world.add_to_board(board, ACTIVE, board * 10 + place, day)
    world.add_to_board(102, ACTIVE, 1029, 8.6)  # after the request


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    world = World(folder=tmp_path_factory.mktemp("generators"))
    _interests(world)
    _neighbours(world)
    _boards(world)
    for user in (POPULAR, INFERS, RARE, NEIGHBOURS, WALKS, ACTIVE):
        world.event(user, QUIET, 8.5)
    world.event(999, QUIET, 9.5)
    return world.run(
        split={"by": "time", "validation_days": 1.0, "test_days": 1.0},
        interest={"num_candidates": 4, "fresh_share": 0.25},
        board={"max_conditions": 2, "recent_items": 2},
    )


def asking(outcome: Outcome, user: int) -> dict[str, Any]:
    (request,) = [row for row in outcome.requests(user) if row["split"] == "validation"]
    return request


def listed(outcome: Outcome, user: int, kind: str, condition: int) -> tuple[list[int], list[float]]:
    request = asking(outcome, user)
    key = (request["request_id"], kind, condition)
    (row,) = [row for row in outcome.rows("candidates") if (row["request_id"], row["condition_type"], row["condition_id"]) == key]
    return row["items"], row["scores"]


def test_an_interest_brings_its_popular_items_then_its_fresh_ones(outcome: Outcome) -> None:
    assert known(asking(outcome, POPULAR), "interest") == [7]
    items, scores = listed(outcome, POPULAR, "interest", 7)
    assert items == [1, 2, 3, 5]
    assert scores == pytest.approx([3 / 6, 2 / 6, 1 / 6, 0.0])


def test_followed_interests_come_first_and_inferred_ones_need_two_items(outcome: Outcome) -> None:
    assert known(asking(outcome, INFERS), "interest") == [19, 15]


def test_of_two_interests_of_equal_share_the_rarer_on_the_site_comes_first(outcome: Outcome) -> None:
    assert known(asking(outcome, RARE), "interest") == [26, 25]


def test_an_item_brings_what_was_engaged_beside_it(outcome: Outcome) -> None:
    # Item 31 was engaged five times in training, 32 twice, the others once. It stands beside 32 twice, 2/sqrt((5+10)·(2+10)), and beside 33 and
    # 41 to 45 once, 1/sqrt((5+10)·(1+10)). 34 is six steps away, beyond the window of five; 35 was beside it in the held-out span only.
    request = asking(outcome, NEIGHBOURS)
    assert [(one["id"], one["items"]) for one in request["conditions"] if one["type"] == "item"] == [(31, [31])]
    items, scores = listed(outcome, NEIGHBOURS, "item", 31)
    assert items == [32, 33, 41, 42, 43, 44, 45]
    assert scores == pytest.approx([2 / (15 * 12) ** 0.5] + [1 / (15 * 11) ** 0.5] * 6, rel=1e-6)


def test_a_board_brings_what_lies_beside_its_items_on_other_boards(outcome: Outcome) -> None:
    # From 51: boards 100, 200, 300 with 1/3 each; 200 → {51, 52}, 300 → {51, 53}. Both 52 and 53 are reached with 1/6, but 53 lies on two boards
    # and counts 1/6/sqrt(2). Item 59 lies beside 53 only, and 51 is the board's own.
    assert known(asking(outcome, WALKS), "board") == [100]
    items, scores = listed(outcome, WALKS, "board", 100)
    assert items == [52, 53]
    assert scores == pytest.approx([1 / 6, 1 / 6 / 2**0.5], rel=1e-6)


def test_active_boards_are_those_with_the_newest_additions_and_show_their_newest_items_last(outcome: Outcome) -> None:
    boards = [one for one in asking(outcome, ACTIVE)["conditions"] if one["type"] == "board"]
    assert [(one["id"], one["items"]) for one in boards] == [(102, [1020, 1021]), (103, [1030])]
    assert boards[0]["score"] > boards[1]["score"]


def test_user_states_know_everything_up_to_the_end(outcome: Outcome) -> None:
    (state,) = [row for row in outcome.rows("user_states") if row["user_id"] == ACTIVE]
    assert state["history_items"] == [QUIET]
    assert [(one["id"], one["items"]) for one in state["conditions"] if one["type"] == "board"] == [(104, [1040]), (102, [1021, 1029])]
