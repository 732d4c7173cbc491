"""Known conditions against none at equal length, oracle conditions, condition match and the slices, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from clrflow.contracts import TEST, TRAIN
from clrflow.evaluation.conditions import ConditionFigures, measure_conditions
from clrflow.evaluation.heldout import Source, load_catalogue
from clrflow.evaluation.ranking import rank
from clrflow.evaluation.scorers import by_popularity, load_item_vectors
from clrflow.evaluation.slices import popularity_deciles, slice_recall

# Six items on a fan of directions: 10, 20, 30 near the first axis, 40, 50, 60 near the second; best first for a query along the axis.
VECTORS = {10: [1.0, 0.0], 20: [0.95, 0.05], 30: [0.9, 0.1], 40: [0.0, 1.0], 50: [0.05, 0.95], 60: [0.1, 0.9]}
ITEMS = {10: [1], 20: [1], 30: [1, 2], 40: [2], 50: [2], 60: [1]}
FIRST, SECOND = [1.0, 0.0], [0.0, 1.0]


def read(world: Any) -> Any:
    catalogue = load_catalogue(
        world.uri("validate_data", "items"), world.uri("bootstrap", "item_statistics"), world.uri("validate_data", "interests")
    )
    with Source(world.uri("bootstrap", "requests"), world.uri("validate_data", "events"), ["watch"]) as source:
        return catalogue, source.held_out(catalogue, TEST, mask_seen=True, max_requests=100, seed=0)


def measure(world: Any, list_length: int = 2, max_requests: int = 100) -> ConditionFigures:
    catalogue, held = read(world)
    items = load_item_vectors(world.uri("train", "item_vectors"), catalogue.item_ids)
    return measure_conditions(
        held, catalogue, items, world.uri("train", "query_vectors"),
        list_length=list_length, cutoffs=(1, 2), max_requests=max_requests, seed=0,
    )  # fmt: skip


def test_the_union_of_known_lists_meets_none_at_the_same_length(make_world, request_of):
    # Lists of 2: under the first condition 10, 20; under the second 40, 50. Union: 4 items, which hold 2 of the targets 10, 40, 60.
    # None at length 4, along the first axis: 10, 20, 30, 60 in this order, which hold 10 and 60.
    world = make_world(
        ITEMS,
        [request_of(1, TEST, [10, 40, 60], known=[("interest", 1), ("board", 7)], query=FIRST, under=[FIRST, SECOND])],
        vectors=VECTORS,
    )
    figures = measure(world)
    both, interest, board = figures.equal_length
    assert (both.name, both.mean_length, both.recall.mean, both.none.mean) == ("known", 4.0, pytest.approx(2 / 3), pytest.approx(2 / 3))
    # The interest alone is none's own list; the board alone finds 40 where none at length 2 finds 10.
    assert (interest.name, interest.mean_length, interest.difference.mean) == ("known, interest only", 2.0, 0.0)
    assert (board.name, board.recall.mean, board.none.mean) == ("known, board only", pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_an_item_of_two_lists_counts_once_so_none_gets_a_shorter_list(make_world, request_of):
    # Both conditions bring 10, 20: the union has 2 items, and none is cut at 2, not at 4.
    world = make_world(
        ITEMS, [request_of(1, TEST, [60], known=[("interest", 1), ("item", 10)], query=FIRST, under=[FIRST, FIRST])], vectors=VECTORS
    )
    both = measure(world).equal_length[0]
    assert (both.mean_length, both.recall.mean, both.none.mean) == (2.0, 0.0, 0.0)


def test_seen_items_are_in_neither_list(make_world, request_of):
    # 10 was seen. Lists of 2 along the first axis: 20, 30.
    R = request_of
    world = make_world(ITEMS, [R(1, TRAIN, [10]), R(1, TEST, [30], known=[("interest", 1)], query=SECOND, under=[FIRST])], vectors=VECTORS)
    both = measure(world).equal_length[0]
    assert (both.recall.mean, both.none.mean, both.difference.mean) == (1.0, 0.0, 1.0)


def test_requests_without_known_conditions_are_left_out_of_the_comparison(make_world, request_of):
    R = request_of
    world = make_world(
        ITEMS,
        [R(1, TEST, [40], known=[("interest", 2)], query=FIRST, under=[SECOND]), R(2, TEST, [10], oracle=[(1, [10])], query=FIRST)],
        vectors=VECTORS,
    )
    both = measure(world).equal_length[0]
    assert (both.num_requests, both.recall.mean, both.none.mean) == (1, 1.0, 0.0)


def test_turns_merge_the_lists_to_one_of_fixed_length(make_world, request_of):
    # By turns: 10, 40 | with none first: 10 (none's and the first condition's), 40. At k = 1 only the first list has had its turn.
    world = make_world(
        ITEMS,
        [request_of(1, TEST, [40], known=[("interest", 1), ("interest", 2)], query=FIRST, under=[FIRST, SECOND])],
        vectors=VECTORS,
    )
    rows = {(row.name, row.fixed_length): row for row in measure(world).merged}
    assert rows["known, by turns", 1].recall.mean == 0.0
    assert rows["known, by turns", 2].recall.mean == 1.0
    assert rows["known and none, by turns", 2].recall.mean == 1.0
    assert rows["known, by turns", 2].none.mean == 0.0


def test_an_oracle_condition_answers_for_its_own_targets_only(make_world, request_of):
    # Drawn from 40 and 50: under it both are the first two; none finds neither. Target 10 isn't its business.
    world = make_world(ITEMS, [request_of(1, TEST, [10, 40, 50], oracle=[(2, [40, 50])], query=FIRST, under=[SECOND])], vectors=VECTORS)
    rows = {row.fixed_length: row for row in measure(world).oracle}
    assert (rows[1].recall.mean, rows[2].recall.mean, rows[2].none.mean) == (0.5, 1.0, 0.0)
    assert rows[2].num_requests == 1


def test_condition_match_is_the_share_of_the_first_ten_that_carry_the_interest(make_world, request_of):
    # Six items, all in the first ten: 10, 20, 30, 60 carry interest 1, i.e. 4 of 6, whatever the order. With 40 and 50 seen: 4 of 4.
    R = request_of
    every = make_world(ITEMS, [R(1, TEST, [10], known=[("interest", 1)])], vectors=VECTORS)
    assert measure(every).match[0].conditioned.mean == pytest.approx(4 / 6)
    fewer = make_world(ITEMS, [R(1, TRAIN, [40, 50]), R(1, TEST, [10], known=[("interest", 1)])], vectors=VECTORS)
    known, oracle = measure(fewer).match
    assert (known.conditioned.mean, known.none.mean, known.num_conditions) == (1.0, 1.0, 1)
    assert oracle.num_conditions == 0


def test_no_conditions_of_a_kind_give_no_row_of_it(make_world, request_of):
    world = make_world(ITEMS, [request_of(1, TEST, [10], oracle=[(1, [10])])], vectors=VECTORS)
    figures = measure(world)
    assert figures.merged == []
    assert [row.num_requests for row in figures.equal_length] == [0]
    assert all(row["num_known"] == 0 for row in figures.by_type)


def test_more_requests_than_asked_for_are_sampled(make_world, request_of):
    world = make_world(ITEMS, [request_of(user, TEST, [10], known=[("interest", 1)]) for user in range(9)], vectors=VECTORS)
    assert measure(world, max_requests=4).num_requests == 4


class TestSlices:
    def test_cold_items_are_their_own_slice(self, make_world, request_of):
        # 10 has three engagements, 20 two, 30 one, the others none; popularity's list is 10, 20, 30, ...
        R = request_of
        world = make_world(ITEMS, [R(1, TRAIN, [10, 20, 30]), R(2, TRAIN, [10, 20]), R(3, TRAIN, [10]), R(4, TEST, [10, 60])])
        catalogue, held = read(world)
        popularity = rank(by_popularity(catalogue.num_engagements), held.relevant, held.masked, 5, catalogue.num_items)
        rows = slice_recall({"popularity": popularity}, held, catalogue, 1)["popularity"]
        assert (rows[0].num, rows[0].recall) == (1, {"popularity": 0.0})
        assert popularity_deciles(catalogue).tolist() == [7, 4, 1, 0, 0, 0]  # a tenth of three items is a third of one
        assert (rows[7].num, rows[7].recall) == (1, {"popularity": 1.0})
        assert sum(row.num for row in rows) == 2

    def test_users_are_grouped_by_what_they_have_seen(self, make_world, request_of):
        R = request_of
        busy = [R(1, TRAIN, [10, 20, 30]), R(1, TEST, [40])]
        world = make_world(ITEMS, [*busy, *(R(user, TEST, [10]) for user in range(2, 6))])
        catalogue, held = read(world)
        popularity = rank(by_popularity(catalogue.num_engagements), held.relevant, held.masked, 5, catalogue.num_items)
        rows = slice_recall({"popularity": popularity}, held, catalogue, 5)["activity"]
        assert [(row.name, row.num) for row in rows if row.num] == [("0 to 0 seen items", 4), ("1 to 3 seen items", 1)]

    @pytest.mark.parametrize("k", [1, 5])
    def test_an_empty_slice_has_no_figure(self, make_world, request_of, k):
        world = make_world(ITEMS, [request_of(1, TEST, [10])])
        catalogue, held = read(world)
        popularity = rank(by_popularity(catalogue.num_engagements), held.relevant, held.masked, 5, catalogue.num_items)
        ages = slice_recall({"popularity": popularity}, held, catalogue, k)["age"]
        assert [(row.name, row.num) for row in ages if row.num] == [("up to a week", 1)]  # created three days before
        assert ages[0].recall == {}
