"""What counts as seen, as relevant and as training data: leakage shows here first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clrflow.contracts import TEST, TRAIN, VALIDATION
from clrflow.errors import ClrflowError, DataError
from clrflow.evaluation.heldout import Catalogue, HeldOut, Source, load_catalogue
from clrflow.evaluation.step import check_leakage

ITEMS = {10: [1], 20: [1, 2], 30: [2], 40: [], 50: [2]}


def catalogue_of(world: Any) -> Catalogue:
    return load_catalogue(
        world.uri("validate_data", "items"), world.uri("bootstrap", "item_statistics"), world.uri("validate_data", "interests")
    )


def source_of(world: Any) -> Source:
    return Source(world.uri("bootstrap", "requests"), world.uri("validate_data", "events"), ["watch"])


def held_out(world: Any, split: str = TEST, mask_seen: bool = True, max_requests: int = 100) -> HeldOut:
    with source_of(world) as source:
        return source.held_out(catalogue_of(world), split, mask_seen=mask_seen, max_requests=max_requests, seed=0)


def ids(world: Any, places: np.ndarray[Any, Any]) -> list[int]:
    return [world.item_ids[place] for place in places]


class TestSeenItems:
    def test_are_all_earlier_events_and_the_targets_are_not_among_them(self, make_world, request_of):
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [10]), R(1, VALIDATION, [20]), R(1, TEST, [30, 40])])
        assert ids(world, held_out(world, VALIDATION).seen.values) == [10]
        assert ids(world, held_out(world, TEST).seen.values) == [10, 20]

    def test_follow_the_log_s_order_within_one_second(self, make_world, request_of):
        # All events of the user share a second; only file order says that 10 and 20 came before 30.
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [10], at=5), R(1, VALIDATION, [20], at=5), R(1, TEST, [30], at=5)])
        assert ids(world, held_out(world, VALIDATION).seen.values) == [10]
        assert ids(world, held_out(world, TEST).seen.values) == [10, 20]

    def test_of_other_users_and_of_impressions_do_not_count(self, make_world, request_of):
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [10]), R(2, TRAIN, [50]), R(1, TEST, [30])], skips=[(1, 40, "impression"), (1, 20, "watch")])
        assert ids(world, held_out(world).seen.values) == [10, 20]

    def test_reach_further_back_than_the_kept_history(self, make_world, request_of):
        # The event of item 20 lies before every request, so no history holds it; it is masked all the same.
        R = request_of
        world = make_world(ITEMS, [R(1, TEST, [30])], skips=[(1, 20, "watch")])
        held = held_out(world)
        assert ids(world, held.masked.values) == [20]


class TestRelevantItems:
    def test_are_distinct_and_a_repeat_of_a_seen_item_is_dropped_and_counted(self, make_world, request_of):
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [10]), R(1, TEST, [30, 30, 10])])
        held = held_out(world)
        assert ids(world, held.relevant.values) == [30]
        assert (held.num_repeats, held.num_skipped) == (1, 0)

    def test_a_request_of_repeats_only_is_skipped_and_counted(self, make_world, request_of):
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [10]), R(1, TEST, [10]), R(2, TEST, [20])])
        held = held_out(world)
        assert held.user_ids.tolist() == [2]
        assert held.facts()["skipped"] == 1

    def test_repeats_stay_when_nothing_is_masked(self, make_world, request_of):
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [10]), R(1, TEST, [10])])
        held = held_out(world, mask_seen=False)
        assert ids(world, held.relevant.values) == [10]
        assert len(held.masked.values) == 0
        assert ids(world, held.seen.values) == [10]  # still the query of the baselines


class TestConditions:
    def test_keep_their_request_and_the_targets_that_oracle_ones_were_drawn_from(self, make_world, request_of):
        R = request_of
        world = make_world(
            ITEMS,
            [R(1, TRAIN, [10]), R(7, TEST, [40]), R(1, TEST, [20, 30, 50], known=[("interest", 1)], oracle=[(2, [30, 50]), (1, [20])])],
        )
        held = held_out(world)
        conditions = held.conditions
        assert held.user_ids[conditions.row].tolist() == [1, 1, 1]
        assert conditions.index.tolist() == [0, 1, 2]
        assert conditions.role.tolist() == ["known", "oracle", "oracle"]
        assert conditions.id.tolist() == [1, 2, 1]
        assert [ids(world, conditions.targets.take(np.array([one])).values) for one in range(3)] == [[], [30, 50], [20]]

    def test_lose_the_targets_that_were_seen_before(self, make_world, request_of):
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [30]), R(1, TEST, [30, 50], oracle=[(2, [30, 50])])])
        assert ids(world, held_out(world).conditions.targets.values) == [50]


class TestIds:
    def test_beyond_2_to_53_and_below_zero_stay_exact(self, make_world, request_of):
        # 2**53 + 1 has no float64; beside it lies 2**53, which it would become.
        large, close = 2**53 + 1, 2**53
        world = make_world(
            {-7: [1], close: [1], large: [1]},
            [request_of(-5, TRAIN, [-7]), request_of(-5, TEST, [large], known=[("interest", 1)])],
        )
        held = held_out(world)
        assert ids(world, held.relevant.values) == [large]
        assert ids(world, held.seen.values) == [-7]
        assert held.user_ids.tolist() == [-5]


class TestSampling:
    def test_draws_so_many_requests_with_the_seed_and_says_so(self, make_world, request_of):
        world = make_world(ITEMS, [request_of(user, TEST, [10]) for user in range(20)])
        held = held_out(world, max_requests=5)
        assert (len(held), held.num_requests, held.num_sampled) == (5, 20, 5)
        assert held.request_ids.tolist() == held_out(world, max_requests=5).request_ids.tolist()


class TestTrainingPairs:
    def test_hold_no_held_out_event(self, make_world, request_of):
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [10, 20, 10]), R(1, VALIDATION, [30]), R(1, TEST, [40]), R(2, TEST, [50])])
        with source_of(world) as source:
            users, items, total = source.training_pairs(100)
        assert list(zip(users.tolist(), items.tolist())) == [(1, 10), (1, 20)]
        assert total == 2

    def test_are_the_newest_when_there_are_too_many(self, make_world, request_of):
        world = make_world(ITEMS, [request_of(1, TRAIN, [10, 20, 30])])
        with source_of(world) as source:
            _, items, total = source.training_pairs(2)
        assert (items.tolist(), total) == ([20, 30], 3)


class TestLeakageCheck:
    def test_a_training_event_after_the_time_cut_is_refused(self, make_world, request_of):
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [10], at=100), R(2, TEST, [20], at=50)], split_by="time")
        with source_of(world) as source, pytest.raises(ClrflowError, match="is not before the first test target"):
            check_leakage(source, "time")

    def test_a_training_event_at_the_very_moment_of_a_test_event_is_refused(self, make_world, request_of):
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [10], at=50), R(2, TEST, [20], at=50)], split_by="time")
        with source_of(world) as source, pytest.raises(ClrflowError, match="is not before"):
            check_leakage(source, "time")

    def test_a_user_trained_on_its_own_future_is_refused_whatever_the_split(self, make_world, request_of):
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [10], at=100), R(1, TEST, [20], at=50)])
        with source_of(world) as source, pytest.raises(ClrflowError, match="1 users have training targets later"):
            check_leakage(source, "last_requests")

    def test_spans_of_different_users_may_overlap_when_last_requests_are_held_out(self, make_world, request_of):
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [10], at=100), R(2, TEST, [20], at=50)])
        with source_of(world) as source:
            spans = check_leakage(source, "last_requests")["spans"]
        assert (spans["train"]["last"], spans["test"]["first"]) == ("2026-01-01T00:01:40+00:00", "2026-01-01T00:00:50+00:00")


class TestInconsistentTables:
    def test_requests_that_were_made_from_other_events_are_refused(self, make_world, request_of):
        ours = make_world(ITEMS, [request_of(1, TEST, [10])])
        theirs = make_world(ITEMS, [request_of(1, TEST, [20])])
        source = Source(ours.uri("bootstrap", "requests"), theirs.uri("validate_data", "events"), ["watch"])
        with source, pytest.raises(ClrflowError, match="first engagement of request 0 is not exactly one event"):
            source.held_out(catalogue_of(ours), TEST, mask_seen=True, max_requests=10, seed=0)

    def test_an_item_outside_the_catalogue_is_named(self, make_world, request_of):
        ours = make_world(ITEMS, [request_of(1, TEST, [10])])
        theirs = make_world({20: [1]}, [request_of(1, TEST, [20])])
        with source_of(ours) as source, pytest.raises(DataError, match="id 10 and 0 more are not in table items"):
            source.held_out(catalogue_of(theirs), TEST, mask_seen=True, max_requests=10, seed=0)
