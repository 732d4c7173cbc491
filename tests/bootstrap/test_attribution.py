"""Which condition an engagement is given, and with what weight."""

from __future__ import annotations

import pytest

from tests.bootstrap.worlds import World, conditioned, engaged

LAST = {"by": "last_requests"}
ONLY_INTEREST = {"item": {"enabled": False}, "board": {"enabled": False}}


@pytest.fixture
def world_of_two(world: World) -> World:
    """User 20 follows 5 and 6; user 1 has made items 1 (interests 5 and 6) and 2 (interest 5) popular in training."""
    world.item(1, 5, 6)
    world.item(2, 5)
    world.item(3, 7)
    world.item(4)
    for day, item in enumerate((1, 2, 90, 90)):
        world.event(1, item, day)
    world.follow(20, 5, 0)
    world.follow(20, 6, 0)
    return world


def test_conditions_whose_candidates_held_the_item_share_its_weight(world_of_two: World) -> None:
    world_of_two.event(20, 1, 10, action="save")  # a save weighs 2; both interests bring item 1
    world_of_two.event(20, 2, 10, 60)  # a click weighs 1; only interest 5 brings item 2
    for day in (11, 12):
        world_of_two.event(20, 90, day)
    request = world_of_two.run(split=LAST, **ONLY_INTEREST).requests(20)[0]
    assert sorted(conditioned(request, 1)) == [("attributed", "interest", 5, 1.0), ("attributed", "interest", 6, 1.0)]
    assert conditioned(request, 2) == [("attributed", "interest", 5, 1.0)]
    unconditional = [target for target in request["targets"] if target["condition"] == -1]
    assert [(target["item_id"], target["weight"], target["position"]) for target in unconditional] == [(1, 2.0, 0), (2, 1.0, 1)]


def test_what_the_log_names_wins_over_what_could_be_attributed(world_of_two: World) -> None:
    world_of_two.event(20, 1, 10, generator="home", condition_type="interest", condition_id=6)
    world_of_two.event(20, 2, 10, 60, generator="graph", condition_type="board", condition_id=2**60)
    world_of_two.event(20, 2, 10, 120, condition_type="none")
    for day in (11, 12):
        world_of_two.event(20, 90, day)
    request = world_of_two.run(split=LAST, **ONLY_INTEREST).requests(20)[0]
    assert conditioned(request, 1) == [("logged", "interest", 6, 1.0)]
    # A condition that no generator names for the user is appended because of its target, so it isn't a known one.
    assert conditioned(request, 2) == [("logged", "board", 2**60, 1.0), ("attributed", "interest", 5, 1.0)]
    assert {one["id"]: one["role"] for one in request["conditions"]} == {5: "known", 6: "known", 2**60: "fallback"}
    assert [target["generator"] for target in request["targets"] if target["source"] == "logged"] == ["home", "graph"]


def test_an_engagement_that_nothing_explains_falls_back_to_the_items_own_interest(world_of_two: World) -> None:
    world_of_two.event(20, 3, 10, action="save")
    world_of_two.event(20, 4, 10, 60)  # an item without interests has the unconditional example only
    for day in (11, 12):
        world_of_two.event(20, 90, day)
    request = world_of_two.run(split=LAST, **ONLY_INTEREST).requests(20)[0]
    assert conditioned(request, 3) == [("fallback", "interest", 7, 1.0)]  # 2 for a save, times 0.5
    assert conditioned(request, 4) == []
    assert engaged(request) == [3, 4]
    assert [one["role"] for one in request["conditions"]] == ["known", "known", "fallback"]

    without = world_of_two.run(split=LAST, fallback_factor=0.0, **ONLY_INTEREST).requests(20)[0]
    assert conditioned(without, 3) == []
    assert [one["role"] for one in without["conditions"]] == ["known", "known"]


def test_only_held_out_engagements_get_an_oracle_that_is_an_entry_of_its_own(world_of_two: World) -> None:
    for day in (10, 11, 12):
        world_of_two.event(20, 2, day)
    train, validation, test = world_of_two.run(split=LAST, **ONLY_INTEREST).requests(20)
    assert conditioned(train, 2) == [("attributed", "interest", 5, 1.0)]
    for request in (validation, test):
        assert sorted(conditioned(request, 2)) == [("attributed", "interest", 5, 1.0), ("oracle", "interest", 5, 1.0)]
        assert [(one["id"], one["role"]) for one in request["conditions"]] == [(5, "known"), (6, "known"), (5, "oracle")]


def test_the_draw_is_fair_over_an_items_interests_and_changes_with_the_seed(world: World) -> None:
    world.item(1, 5, 6, 7)
    for user in range(300):
        for day in range(3):
            world.event(user, 1, day)
    settings = {"split": LAST, "interest": {"enabled": False}, "item": {"enabled": False}, "board": {"enabled": False}}
    draws = {}
    for seed in (0, 1):
        rows = world.run(seed=seed, **settings).rows("requests")
        draws[seed] = [conditioned(row, 1)[0][2] for row in rows if row["split"] == "train"]
    counts = [draws[0].count(interest) for interest in (5, 6, 7)]
    # 300 fair draws from three: 100 each with a standard deviation of 8.
    assert sum(counts) == 300
    assert min(counts) > 65
    assert draws[0] != draws[1]
