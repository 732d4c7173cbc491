"""The whole step: contracts, determinism, and that nothing knows its future."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clrflow.bootstrap.generators.board import BoardGenerator
from clrflow.bootstrap.generators.item import ItemGenerator
from clrflow.bootstrap.report import render
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.contracts import CANDIDATES, ITEM_STATISTICS, REQUESTS, USER_STATES
from tests.bootstrap.random_worlds import BY_TIME, NEWEST, catalogue, fill, fill_outcome
from tests.bootstrap.worlds import Outcome, World, at, engaged

LAST = {"by": "last_requests"}


def without_numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "request_id"} for row in rows]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    world = World(folder=tmp_path_factory.mktemp("outcome"))
    fill_outcome(world)
    return world.run(split=BY_TIME)


def test_the_outputs_are_what_the_contracts_say(outcome: Outcome) -> None:
    schemas = {"requests": REQUESTS, "candidates": CANDIDATES, "item_statistics": ITEM_STATISTICS, "user_states": USER_STATES}
    assert {name: table.schema for name, table in outcome.tables.items()} == schemas
    rows = outcome.rows("requests")
    assert [row["request_id"] for row in rows] == sorted({row["request_id"] for row in rows})
    order_of = [(row["requested_at"].date(), row["user_id"], row["requested_at"]) for row in rows]
    assert order_of == sorted(order_of)
    order = {"none": 0, "interest": 1, "item": 2, "board": 3}
    for row in rows:
        assert len(row["history_items"]) == len(row["history_actions"]) == len(row["history_times"])
        known = [one for one in row["conditions"] if one["role"] == "known"]
        assert row["conditions"][: len(known)] == known
        assert known == sorted(known, key=lambda one: (order[one["type"]], -one["score"]))
        assert all(-1 <= target["condition"] < len(row["conditions"]) for target in row["targets"])
    assert outcome.quality.facts()["splits"]["train"]["requests"] == sum(row["split"] == "train" for row in rows)


def test_lists_that_are_ruled_out_beforehand_hold_nothing_that_was_engaged(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for generator in (BoardGenerator, ItemGenerator):
        monkeypatch.setattr(generator, "holding", lambda *_: None)
    world = World(folder=tmp_path)
    fill_outcome(world)
    all_made = world.run(split=BY_TIME)
    assert all_made.fingerprints == outcome.fingerprints
    explained = {target["generator"] for row in outcome.requests() for target in row["targets"]}
    assert {"board", "item"} <= explained


def test_histories_are_all_the_users_earlier_engagements_in_order(outcome: Outcome) -> None:
    for user in {row["user_id"] for row in outcome.requests()}:
        before: list[int] = []
        for row in outcome.requests(user):
            assert row["history_items"] == before
            before = before + engaged(row)
        (state,) = [one for one in outcome.rows("user_states") if one["user_id"] == user]
        assert state["history_items"] == before


def test_the_weights_of_an_engagement_add_up_to_its_action(outcome: Outcome) -> None:
    weights = {"click": 1.0, "save": 2.0}
    for row in outcome.requests():
        sums: dict[tuple[int, str], float] = {}
        for target in row["targets"]:
            key = (target["position"], target["source"])
            sums[key] = sums.get(key, 0.0) + target["weight"]
            factor = 0.5 if target["source"] == "fallback" else 1.0
            sums[target["position"], "expected " + target["source"]] = weights[target["action"]] * factor
        for (position, source), total in list(sums.items()):
            if not source.startswith("expected"):
                assert total == pytest.approx(sums[position, "expected " + source], rel=1e-6)


def test_impressions_are_not_engaged_in_their_request(outcome: Outcome) -> None:
    assert any(row["impressions"] for row in outcome.requests())
    assert all(not set(row["impressions"]) & set(engaged(row)) for row in outcome.requests())


def test_item_statistics_count_the_train_span_only(outcome: Outcome) -> None:
    counted: dict[int, int] = {}
    for row in outcome.requests():
        if row["split"] == "train":
            for item in engaged(row):
                counted[item] = counted.get(item, 0) + 1
    assert {row["item_id"]: row["num_engagements"] for row in outcome.rows("item_statistics")} == {
        i: counted.get(i, 0) for i in range(1, 25)
    }


def test_the_report_and_figures_tell_what_happened(outcome: Outcome) -> None:
    page = render(outcome.quality, BootstrapSettings())
    assert page.count("<img") == 2
    assert all(f">{name}<" in page for name in ("interest", "item", "board", "validation"))
    assert outcome.quality.facts()["train_until"] < at(8).isoformat() <= outcome.quality.facts()["first_validation"]
    assert outcome.quality.metrics()["compression"] > 1
    assert outcome.quality.facts()["num_engagements"] == sum(len(engaged(row)) for row in outcome.requests())


@pytest.fixture(scope="module")
def futures(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """Requests of worlds that differ from day 6, from day 9 and from day 10 on: in who acts, on what, and how often."""
    found = {}
    for branch in (6, 9, 10):
        world = catalogue(World(folder=tmp_path_factory.mktemp("future")))
        for day in range(NEWEST):
            changed = day >= branch
            fill(world, after=day, until=day + 1, seed=day + 100 * changed, users=5 if changed else 8)
        world.event(7, 24, NEWEST - 1, 80_000)  # the same newest event, so that the cuts are the same
        found[branch] = without_numbers(world.run(split=BY_TIME).rows("requests"))
    return found


@pytest.mark.parametrize("until", [6, 9], ids=["train", "validation"])
def test_what_happens_after_a_time_changes_no_example_before_it(futures: dict[int, list[dict[str, Any]]], until: int) -> None:
    before = [[row for row in futures[branch] if row["requested_at"] < at(until)] for branch in (10, until)]
    assert len(before[0]) > 40
    assert before[0] == before[1]
    assert futures[10] != futures[until]


def test_held_out_requests_of_some_users_teach_the_generators_nothing(make_world: Callable[[str], World]) -> None:
    # Every user's last request (days 8 and 9) engages other items in the other world, on boards too; all but its own targets stays.
    found = []
    for name, shift in (("one", 0), ("other", 7)):
        world = catalogue(make_world(name))
        fill(world, until=8, seed=5)
        for user in range(8):
            for place in range(3):
                item = 1 + (user * 3 + place + shift) % 24
                world.event(user, item, 8 + user % 2, place)
                world.add_to_board(user * 10, user, item, 8 + user % 2)
        world.event(50, 1, 0)  # a user with one event
        found.append(world.run(split=LAST, request={"max_targets": 10, "session_gap_minutes": 30.0, "max_history": 5}))
    for row, other in zip(found[0].requests(), found[1].requests(), strict=True):
        for field in ("user_id", "requested_at", "split", "history_items"):
            assert row[field] == other[field]
        if row["split"] == "test":
            assert [one for one in row["conditions"] if one["role"] == "known"] == [
                one for one in other["conditions"] if one["role"] == "known"
            ]
        else:
            assert row == other
    assert found[0].rows("candidates") == found[1].rows("candidates")
    assert found[0].rows("item_statistics") == found[1].rows("item_statistics")


def test_neither_the_order_of_rows_nor_the_size_of_ranges_leaves_a_trace(
    outcome: Outcome, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clrflow.bootstrap.duckdb_engine.REQUESTS_AT_ONCE", 40)
    monkeypatch.setattr("clrflow.bootstrap.duckdb_engine.ENGAGEMENTS_AT_ONCE", 50)
    monkeypatch.setattr("clrflow.bootstrap.dataset.REQUESTS_A_BUCKET", 4)
    monkeypatch.setattr("clrflow.bootstrap.dataset.LISTED_A_BUCKET", 2)
    monkeypatch.setattr("clrflow.bootstrap.duckdb_engine.LISTS_AT_ONCE", 70)
    monkeypatch.setattr("clrflow.bootstrap.generators.item.QUERIES_AT_ONCE", 16)
    monkeypatch.setattr("clrflow.bootstrap.generators.item.BATCH", 3)
    fill_outcome(world)
    random.Random(0).shuffle(world.boards)
    random.Random(0).shuffle(world.followed)
    world.shuffled = True
    found = world.run(split=BY_TIME)
    assert found.tables == outcome.tables
    differing = {name for name, value in outcome.quality.metrics().items() if found.quality.metrics()[name] != value}
    assert differing <= {"compression"}  # lists of bits take whole bytes in every file


def test_ids_beyond_floats_survive_boards_may_be_missing_and_many_held_out_requests_are_sampled(world: World) -> None:
    big, other = 2**53 + 1, 2**53 + 3
    world.item(big, 2**54 + 1)
    world.item(other, 2**54 + 3)
    for user in (-7, 2**55 + 1):
        for day, item in enumerate((big, other, big, other)):
            world.event(user, item, day)
    out = world.run(split=LAST, max_candidate_requests=3)
    assert {row["user_id"] for row in out.requests()} == {-7, 2**55 + 1}
    assert {item for row in out.requests() for item in engaged(row)} == {big, other}
    conditions = [one for row in out.requests() for one in row["conditions"]]
    assert {one["id"] for one in conditions if one["type"] == "interest"} == {2**54 + 1, 2**54 + 3}
    assert {one["id"] for one in conditions if one["type"] == "item"} == {big, other}
    assert not [one for one in conditions if one["type"] == "board"]
    # Each user's requests of days 2 and 3 are held out; of the four every one but the first makes a whole number of threes.
    held_out = [row["request_id"] for row in out.requests() if row["split"] != "train"]
    assert {row["request_id"] for row in out.rows("candidates")} == set(held_out[1:])
    assert {item for row in out.rows("candidates") for item in row["items"]} == {big, other}
