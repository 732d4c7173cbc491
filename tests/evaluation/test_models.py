"""The models of the harness: vectors that must fit, baselines that never see the held-out span, generators merged by turns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clrflow.contracts import TEST, TRAIN, VALIDATION, query_vectors_schema
from clrflow.data.tables import write_table
from clrflow.errors import ClrflowError
from clrflow.evaluation.baselines import GRIDS, fit_baseline, training_matrix
from clrflow.evaluation.generators import rank_generators
from clrflow.evaluation.heldout import Source, load_catalogue
from clrflow.evaluation.ranking import rank
from clrflow.evaluation.scorers import by_popularity, load_item_vectors, load_query_vectors

ITEMS = {10: [1], 20: [1], 30: [1], 40: [1], 50: [1]}


def read(world: Any) -> Any:
    """Catalogue, held-out splits and training pairs of a world."""
    catalogue = load_catalogue(
        world.uri("validate_data", "items"), world.uri("bootstrap", "item_statistics"), world.uri("validate_data", "interests")
    )
    with Source(world.uri("bootstrap", "requests"), world.uri("validate_data", "events"), ["watch"]) as source:
        held = {name: source.held_out(catalogue, name, mask_seen=True, max_requests=100, seed=0) for name in (VALIDATION, TEST)}
        users, items, _ = source.training_pairs(1000)
    return catalogue, held, training_matrix(catalogue, users, items)


class TestVectors:
    def test_of_items_come_in_the_catalogue_s_order(self, make_world, request_of):
        world = make_world({30: [1], 10: [1]}, [request_of(1, TEST, [10])], vectors={10: [1.0, 0.0], 30: [0.0, 2.0]})
        vectors = load_item_vectors(world.uri("train", "item_vectors"), np.array([10, 30]))
        assert vectors.tolist() == [[1, 0], [0, 1]]

    def test_of_another_catalogue_are_refused(self, make_world, request_of):
        world = make_world(ITEMS, [request_of(1, TEST, [10])])
        with pytest.raises(ClrflowError, match="none of item 99"):
            load_item_vectors(world.uri("train", "item_vectors"), np.array([10, 20, 30, 40, 99]))

    @pytest.mark.parametrize("value", [float("nan"), 2.0, 0.0])
    def test_that_are_not_unit_vectors_are_refused(self, value, tmp_path):
        schema = query_vectors_schema(2)
        rows = [{"request_id": 0, "condition": -1, "vector": [value, 0.0]}]
        uri = write_table(str(tmp_path / "q"), pa.Table.from_pylist(rows, schema=schema), schema).uri
        with pytest.raises(ClrflowError, match="not unit vectors"):
            load_query_vectors(uri, np.array([0]), np.array([-1]))

    def test_of_queries_are_found_by_request_and_condition(self, make_world, request_of):
        one = request_of(1, TEST, [10], known=[("interest", 1)], query=[1.0, 0, 0, 0, 0], under=[[0.0, 1, 0, 0, 0]])
        world = make_world(ITEMS, [one, request_of(2, TEST, [10], query=[0.0, 0, 0, 0, 1])])
        found = load_query_vectors(world.uri("train", "query_vectors"), np.array([1, 0, 0]), np.array([-1, 0, -1]))
        assert found.argmax(axis=1).tolist() == [4, 1, 0]

    def test_that_are_missing_are_named(self, make_world, request_of):
        world = make_world(ITEMS, [request_of(1, TEST, [10])])
        with pytest.raises(ClrflowError, match=r"1 of 2 query vectors are missing, e\.g\. request 0 condition 3"):
            load_query_vectors(world.uri("train", "query_vectors"), np.array([0, 0]), np.array([-1, 3]))


class TestPopularity:
    def test_counts_beyond_float32_are_not_tied(self):
        scores = by_popularity(np.array([2**24, 2**24 + 1]))(np.array([0]))
        assert scores[0, 1] > scores[0, 0]


class TestBaselines:
    @pytest.fixture
    def world(self, make_world, request_of):
        """Two crowds: users 1 to 8 watch 10 and 20 together, users 11 to 18 watch 30 and 40. User 99 begins with 10 and goes on to 20."""
        R = request_of
        crowd = [R(user, TRAIN, [10, 20]) for user in range(1, 9)] + [R(user, TRAIN, [30, 40]) for user in range(11, 19)]
        return make_world(ITEMS, [*crowd, R(99, TRAIN, [10]), R(99, VALIDATION, [20]), R(99, TEST, [30])])

    @pytest.mark.parametrize("name", ["itemknn", "als"])
    def test_find_the_item_that_goes_with_the_history(self, world, name):
        catalogue, held, matrix = read(world)
        baseline = fit_baseline(name, matrix, catalogue, held[VALIDATION], use_grid=True, seed=0)
        validation = held[VALIDATION]
        ranking = rank(baseline.scorer(validation), validation.relevant, validation.masked, 5, catalogue.num_items)
        assert ranking.ranks.tolist() == [1]  # 20 goes with 10
        assert len(baseline.grid) == len(GRIDS[name])

    def test_are_fitted_without_any_held_out_event(self, world):
        # User 99's row holds item 10 only, although it went on to 20 and 30.
        catalogue, _, matrix = read(world)
        assert matrix.shape == (17, 5)
        assert [world.item_ids[place] for place in matrix[16].indices] == [10]
        assert matrix.sum() == 33
        assert catalogue.num_engagements.tolist() == [9, 8, 8, 8, 0]

    def test_test_queries_know_the_validation_events(self, world):
        _, held, _ = read(world)
        assert [world.item_ids[place] for place in held[TEST].seen.values] == [10, 20]

    @pytest.mark.parametrize("name", ["itemknn", "als"])
    def test_give_the_same_figures_twice(self, world, name):
        catalogue, held, matrix = read(world)
        scores = [
            fit_baseline(name, matrix, catalogue, held[VALIDATION], use_grid=False, seed=0).scorer(held[TEST])(np.array([0]))
            for _ in range(2)
        ]
        assert np.array_equal(*scores)

    def test_an_empty_history_is_scored_without_a_failure(self, make_world, request_of):
        world = make_world(ITEMS, [request_of(1, TRAIN, [10, 20]), request_of(2, TRAIN, [10, 30]), request_of(3, TEST, [20])])
        catalogue, held, matrix = read(world)
        for name in ("itemknn", "als"):
            scores = fit_baseline(name, matrix, catalogue, held[VALIDATION], use_grid=False, seed=0).scorer(held[TEST])(np.array([0]))
            assert np.isfinite(scores).all()


class TestGenerators:
    def test_are_merged_by_turns_without_seen_items(self, make_world, request_of):
        R = request_of
        lists = {"interest": [[10, 20, 30], [40]], "board": [[50]]}
        world = make_world(ITEMS, [R(1, TRAIN, [10]), R(1, TEST, [30], candidates=lists), R(2, TEST, [20])])
        catalogue, held, _ = read(world)
        found = rank_generators(world.uri("bootstrap", "candidates"), held[TEST], catalogue, 4)

        def listed(name: str) -> list[list[int]]:
            return [[world.item_ids[place] if place >= 0 else -1 for place in row] for row in found[name].lists]

        # 10 is seen; the turns are 20, 40 and then 30. User 2 has no candidates.
        assert listed("interest") == [[20, 40, 30, -1], [-1] * 4]
        assert listed("board") == [[50, -1, -1, -1], [-1] * 4]
        assert sorted(listed("all")[0]) == [20, 30, 40, 50]
        assert found["interest"].ranks.tolist() == [3, 0]

    def test_none_at_all_give_no_ranking(self, make_world, request_of):
        world = make_world(ITEMS, [request_of(1, TEST, [30])])
        catalogue, held, _ = read(world)
        assert rank_generators(world.uri("bootstrap", "candidates"), held[TEST], catalogue, 4) == {}
