"""The whole step on a small world: what it writes, what it shows, what it refuses."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from clrflow import storage
from clrflow.contracts import TEST, TRAIN, VALIDATION
from clrflow.data.tables import read_table
from clrflow.errors import ClrflowError, DataError
from clrflow.evaluation.step import finite

ITEMS = {item: [1 + item % 2] for item in range(1, 61)}


def world_of(make_world, R, **more):
    """60 items, one axis each. Items 1 to 3 are popular. User 7's query points at its target, user 8's at an item that isn't."""
    crowd = [R(user, TRAIN, [1, 2, 3]) for user in range(100, 105)]
    axis = [[1.0 if place == item - 1 else 0.0 for place in range(60)] for item in range(1, 61)]
    return make_world(
        ITEMS,
        [
            *crowd,
            R(7, TRAIN, [1]), R(7, VALIDATION, [2], query=axis[1]),
            R(7, TEST, [50], query=axis[49], known=[("interest", 1)], oracle=[(1, [50])], candidates={"interest": [[50, 51]]}),
            R(8, TRAIN, [2]), R(8, VALIDATION, [1], query=axis[59]), R(8, TEST, [3], query=axis[59]),
        ],
        **more,
    )  # fmt: skip


@pytest.fixture
def outcome(make_world, request_of):
    return world_of(make_world, request_of).evaluate("evaluation.baselines=[itemknn, als]")


def test_the_step_leaves_figures_by_hand_rows_json_and_a_page(outcome):
    metrics = outcome.manifest.metrics
    # User 7's target is first in its list; user 8's target ties with 57 others behind item 60 and comes last of 58: beyond 50.
    assert metrics["recall@50"] == 0.5
    assert metrics["ndcg@10"] == 0.5
    assert metrics["hit@10"] == 0.5
    # Popularity: user 7 has seen 1 and 2 and its target 50 is cold, last of the tie; user 8's target 3 leads what it hasn't seen.
    assert metrics["popularity_recall@50"] == 0.5
    assert metrics["cold_recall@50"] == 1.0
    assert metrics["heuristic_interest_recall@50"] == 0.5
    assert outcome.manifest.facts["num_users"] == 2

    table = read_table(outcome.manifest.output("per_request"))
    assert len(table) == 2 * 2 * 5  # splits, users, models
    rows = table.filter((pc.field("model") == "model") & (pc.field("split") == TEST)).sort_by("user_id")
    assert rows["user_id"].to_pylist() == [7, 8]
    assert rows["recall@50"].to_pylist() == [1.0, 0.0]
    assert rows["requested_at"].to_pylist()[0].isoformat() == "2026-01-01T00:00:03+00:00"

    figures = storage.read_json(outcome.manifest.output("metrics"))
    assert figures["splits"]["test"]["models"]["model"]["recall@50"]["mean"] == 0.5
    assert figures["leakage"]["users_trained_on_their_future"] == 0
    assert set(figures["baselines"]) == {"itemknn", "als"}
    shown = outcome.manifest.facts["table"]
    assert shown["columns"][:2] == ["model", "recall@50"]
    assert [row[0] for row in shown["rows"]] == ["model", "popularity", "itemknn", "als", "heuristic_interest"]
    page = storage.read_bytes(outcome.manifest.report_uri).decode()
    assert "What conditions bring" in page
    assert page.count("<img") == 5


def test_two_runs_give_equal_figures(make_world, request_of):
    first, second = (world_of(make_world, request_of).measure("evaluation.baselines=[als]") for _ in range(2))
    assert finite(first.as_json()) == finite(second.as_json())


def test_other_cutoffs_still_measure_the_headline(make_world, request_of):
    metrics = world_of(make_world, request_of).measure("evaluation.cutoffs=[5]").metrics()
    assert (metrics["recall@50"], metrics["ndcg@10"]) == (0.5, 0.5)


def test_a_constant_model_is_at_chance(make_world, request_of):
    # All item vectors equal: 60 tied items, lists of 50 that need not hold the target.
    same = {item: [1.0, 0.0] for item in ITEMS}
    R = request_of
    world = make_world(ITEMS, [R(1, TRAIN, [1]), R(2, VALIDATION, [2]), R(1, TEST, [9, 8, 7])], vectors=same)
    metrics = world.measure().metrics()
    assert (metrics["recall@50"], metrics["ndcg@10"]) == (0.0, 0.0)


def test_no_validation_requests_and_no_conditions_are_no_obstacle(make_world, request_of):
    R = request_of
    world = make_world(ITEMS, [R(1, TRAIN, [1, 2]), R(2, TRAIN, [1, 2]), R(1, TEST, [3])])
    outcome = world.evaluate("evaluation.baselines=[als]")
    assert "als_recall@50" in outcome.manifest.metrics
    assert "known_recall" not in outcome.manifest.metrics


def test_a_test_split_of_repeats_only_is_refused(make_world, request_of):
    R = request_of
    world = make_world(ITEMS, [R(1, TRAIN, [1]), R(1, TEST, [1])])
    with pytest.raises(DataError, match="none of the 1 test requests has a target that its user hadn't seen"):
        world.evaluate()


def test_training_beyond_the_cut_fails_the_step(make_world, request_of):
    R = request_of
    world = make_world(ITEMS, [R(1, TRAIN, [1], at=9), R(2, TEST, [2], at=5)], split_by="time")
    with pytest.raises(ClrflowError, match="is not before"):
        world.evaluate()


def test_masking_off_lets_seen_items_back_in(make_world, request_of):
    # Popularity's list for user 8 without a mask: 1, 2, 3 by count, so its target comes third instead of first.
    world = world_of(make_world, request_of)
    mrr = [world.measure(f"evaluation.mask_seen={flag}").headline.values["popularity"]["mrr"][1] for flag in ("true", "false")]
    assert mrr == [1.0, pytest.approx(1 / 3)]
