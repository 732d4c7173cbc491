"""Which condition an engagement is given, and with what weight."""

from __future__ import annotations

import pytest

from tests.bootstrap.worlds import Outcome, World, conditioned, engaged

ONLY_INTEREST = {"split": {"by": "last_requests"}, "item": {"enabled": False}, "board": {"enabled": False}}
SHARES, LOGS, FALLS, HELD_OUT = 20, 21, 22, 23


def build(world: World) -> World:
    """Four users who follow 5 and 6, each with a first request of its own kind; user 1 has made items 1 and 2 popular in training."""
    for item, interests in ((1, (5, 6)), (2, (5,)), (3, (7,)), (4, ())):
        world.item(item, *interests)
    for day, item in enumerate((1, 2, 90, 90)):
        world.event(1, item, day)
    for user in (SHARES, LOGS, FALLS, HELD_OUT):
        world.follow(user, 5, 0)
        world.follow(user, 6, 0)
        for day in (11, 12):
            world.event(user, 2, day)
    world.event(SHARES, 1, 10, action="save")
    world.event(SHARES, 2, 10, 60)
    world.event(LOGS, 1, 10, generator="home", condition_type="interest", condition_id=6)
    world.event(LOGS, 2, 10, 60, generator="graph", condition_type="board", condition_id=2**60)
    world.event(LOGS, 2, 10, 120, condition_type="none")
    world.event(LOGS, 2, 10, 180, condition_type="weather", condition_id=5)
    world.event(FALLS, 3, 10, action="save")
    world.event(FALLS, 4, 10, 60)
    world.event(HELD_OUT, 2, 10)
    return world


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return build(World(folder=tmp_path_factory.mktemp("attribution"))).run(**ONLY_INTEREST)


def test_conditions_whose_candidates_held_the_item_share_its_weight(outcome: Outcome) -> None:
    request = outcome.requests(SHARES)[0]
    # A save weighs 2 and both interests bring item 1; a click weighs 1 and only interest 5 brings item 2.
    assert sorted(conditioned(request, 1)) == [("attributed", "interest", 5, 1.0), ("attributed", "interest", 6, 1.0)]
    assert conditioned(request, 2) == [("attributed", "interest", 5, 1.0)]
    unconditional = [target for target in request["targets"] if target["condition"] == -1]
    assert [(target["item_id"], target["weight"], target["position"]) for target in unconditional] == [(1, 2.0, 0), (2, 1.0, 1)]


def test_what_the_log_names_wins_over_what_could_be_attributed(outcome: Outcome) -> None:
    request = outcome.requests(LOGS)[0]
    assert conditioned(request, 1) == [("logged", "interest", 6, 1.0)]
    attributed = ("attributed", "interest", 5, 1.0)
    assert conditioned(request, 2) == [("logged", "board", 2**60, 1.0), attributed, attributed]
    # A condition that no generator names for the user is appended because of its target, so it isn't a known one.
    assert {one["id"]: one["role"] for one in request["conditions"]} == {5: "known", 6: "known", 2**60: "fallback"}
    assert [target["generator"] for target in request["targets"] if target["source"] == "logged"] == ["home", "graph"]


def test_logged_conditions_of_an_unknown_type_are_counted(outcome: Outcome) -> None:
    assert outcome.quality.num_unusable_logged == 1  # "weather"; "none" is a type, the unconditional one


def test_a_logged_item_that_the_catalogue_lacks_is_no_condition_and_is_counted(world: World) -> None:
    build(world).event(LOGS, 2, 10, 240, condition_type="item", condition_id=777)
    outcome = world.run(**ONLY_INTEREST)
    assert all(one["id"] != 777 for row in outcome.rows("requests") for one in row["conditions"])
    assert outcome.quality.num_unusable_logged == 2  # and "weather"


def test_an_engagement_that_nothing_explains_falls_back_to_the_items_own_interest(outcome: Outcome) -> None:
    request = outcome.requests(FALLS)[0]
    assert conditioned(request, 3) == [("fallback", "interest", 7, 1.0)]  # 2 for a save, times 0.5
    assert conditioned(request, 4) == []  # an item without interests has the unconditional example only
    assert engaged(request) == [3, 4]
    assert [one["role"] for one in request["conditions"]] == ["known", "known", "fallback"]


def test_a_factor_of_zero_leaves_fallbacks_out(world: World) -> None:
    request = build(world).run(fallback_factor=0.0, **ONLY_INTEREST).requests(FALLS)[0]
    assert conditioned(request, 3) == []
    assert engaged(request) == [3, 4]
    assert [one["role"] for one in request["conditions"]] == ["known", "known"]


def test_only_held_out_engagements_get_an_oracle_that_is_an_entry_of_its_own(outcome: Outcome) -> None:
    train, validation, test = outcome.requests(HELD_OUT)
    assert conditioned(train, 2) == [("attributed", "interest", 5, 1.0)]
    for request in (validation, test):
        assert sorted(conditioned(request, 2)) == [("attributed", "interest", 5, 1.0), ("oracle", "interest", 5, 1.0)]
        assert [(one["id"], one["role"]) for one in request["conditions"]] == [(5, "known"), (6, "known"), (5, "oracle")]


def test_the_figures_count_each_engagement_once(outcome: Outcome) -> None:
    # Without a conditioned row: items 90 (user 1, four requests' worth is 2) and item 4, which have no interests. Two are logged, one falls back.
    explained = outcome.quality.explained
    assert explained["logged"] == 2
    assert explained["fallback"] + explained["nothing"] + explained["attributed"] == outcome.quality.num_engagements - 2
    assert outcome.quality.num_engagements == 4 + 8 + 2 + 4 + 2 + 1


def test_the_draw_is_fair_over_an_items_interests(world: World) -> None:
    world.item(1, 5, 6, 7)
    for user in range(300):
        for day in range(3):
            world.event(user, 1, day)
    rows = world.run(interest={"enabled": False}, **ONLY_INTEREST).rows("requests")
    draws = [conditioned(row, 1)[0][2] for row in rows if row["split"] == "train"]
    counts = [draws.count(interest) for interest in (5, 6, 7)]
    # 300 fair draws from three: 100 each with a standard deviation of 8.
    assert sum(counts) == 300
    assert min(counts) > 70
