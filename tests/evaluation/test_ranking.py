"""Ranks by the worst list, masks, ties, and the metrics by hand."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest

from clrflow.evaluation import ranking
from clrflow.evaluation.groups import Groups
from clrflow.evaluation.metrics import coverage, per_query
from clrflow.evaluation.ranking import rank, rank_lists
from clrflow.evaluation.scorers import round_robin


def groups(*rows: list[int]) -> Groups:
    flat = [(row, value) for row, values in enumerate(rows) for value in values]
    return Groups.of(np.array([row for row, _ in flat], int), np.array([value for _, value in flat], int), len(rows))


def ranked(scores: list[list[float]], relevant: Groups, masked: Groups | None = None, depth: int = 10) -> ranking.Ranking:
    table = np.array(scores, np.float32)
    return rank(lambda rows: table[rows].copy(), relevant, masked or groups(*[[]] * len(scores)), depth, table.shape[1])


class TestGroups:
    def test_rows_can_be_taken_in_any_order_and_twice(self):
        taken = groups([1, 2], [], [3]).take(np.array([2, 0, 2, 1]))
        assert taken.offsets.tolist() == [0, 1, 3, 4, 4]
        assert taken.values.tolist() == [3, 1, 2, 3]

    def test_values_can_be_left_out_and_rows_stay(self):
        kept = groups([1, 2], [3]).keep(np.array([False, True, False]))
        assert (kept.offsets.tolist(), kept.values.tolist()) == ([0, 1, 1], [2])


class TestRanking:
    def test_best_score_comes_first(self):
        found = ranked([[0.1, 0.9, 0.5]], groups([2]))
        assert found.lists[0, :3].tolist() == [1, 2, 0]
        assert found.ranks.tolist() == [2]

    def test_a_tie_never_favours_the_target(self):
        # Items 0, 1, 2 share a score and 1 is right: the worst list puts it third, wherever it stands in the catalogue.
        assert [ranked([[5.0, 5.0, 5.0]], groups([right])).ranks.tolist() for right in range(3)] == [[3], [3], [3]]

    def test_two_tied_targets_take_the_last_two_places_of_their_tie(self):
        assert sorted(ranked([[5.0, 5.0, 5.0, 1.0]], groups([0, 2])).ranks.tolist()) == [2, 3]

    def test_constant_scores_give_nothing_while_the_catalogue_is_longer_than_the_list(self):
        relevant = groups([3, 70], [99])
        found = ranked([[0.0] * 100] * 2, relevant, depth=50)
        assert found.ranks.tolist() == [0, 0, 0]
        assert per_query(found, (50,))["recall@50"].tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("depth", [1, 2, 3, 7])
    def test_a_short_list_is_the_head_of_the_whole_worst_list(self, depth):
        # Scores of five values over 40 items, so that ties reach across every cut.
        draws = np.random.default_rng(depth)
        scores = draws.integers(0, 5, (30, 40)).astype(np.float32)
        relevant = groups(*[list(draws.choice(40, 6, replace=False)) for _ in range(30)])
        short, whole = ranked(scores.tolist(), relevant, depth=depth), ranked(scores.tolist(), relevant, depth=40)
        assert np.array_equal(short.ranks, np.where(whole.ranks <= depth, whole.ranks, 0))

    def test_masked_items_leave_the_list_and_the_others_move_up(self):
        found = ranked([[0.9, 0.8, 0.7]], groups([2]), masked=groups([0]))
        assert found.lists[0, :3].tolist() == [1, 2, -1]
        assert found.ranks.tolist() == [2]

    def test_a_score_that_is_no_number_is_the_last_one_and_never_a_hit(self):
        found = ranked([[np.nan, 0.5]], groups([0]))
        assert found.lists[0, :2].tolist() == [1, -1]
        assert found.ranks.tolist() == [0]

    def test_chunks_change_nothing(self, monkeypatch):
        draws = np.random.default_rng(0)
        scores = draws.normal(size=(23, 17)).tolist()
        relevant = groups(*[[row % 17] for row in range(23)])
        whole = ranked(scores, relevant)
        monkeypatch.setattr(ranking, "CHUNK_BYTES", 17 * 16 * 4)  # four requests at a time
        assert np.array_equal(ranked(scores, relevant).ranks, whole.ranks)
        assert np.array_equal(ranked(scores, relevant).lists, whole.lists)

    def test_several_queries_of_a_request_share_its_mask(self):
        scores = np.array([[3.0, 2.0, 1.0]] * 3, np.float32)
        found = rank(lambda rows: scores[rows].copy(), groups([1], [1], [1]), groups([0], []), 3, 3, np.array([0, 1, 0]))
        assert found.ranks.tolist() == [1, 2, 1]


class TestMetrics:
    def test_recall_hit_ndcg_and_mrr_by_hand(self):
        # Relevant: items 0, 1, 2, found at ranks 1 and 3, the third one beyond the list of 3.
        found = rank_lists(np.array([[0, 9, 1]], np.int32), groups([0, 1, 2]), 10)
        values = per_query(found, (1, 3))
        assert values["recall@1"][0] == pytest.approx(1 / 3)
        assert values["recall@3"][0] == pytest.approx(2 / 3)
        assert values["hit@3"][0] == 1
        # DCG = 1/log2(2) + 1/log2(4) = 1.5; the best possible has hits at 1, 2 and 3.
        assert values["ndcg@3"][0] == pytest.approx(1.5 / (1 + 1 / log2(3) + 1 / 2))
        # At k = 1 the best possible is one hit, although three items are relevant.
        assert values["ndcg@1"][0] == pytest.approx(1.0)
        assert values["mrr"][0] == 1.0

    def test_mrr_is_of_the_first_hit_and_nothing_beyond_the_list(self):
        found = rank_lists(np.array([[7, 8, 0], [7, 8, 9]], np.int32), groups([0], [0]), 10)
        assert per_query(found, (3,))["mrr"].tolist() == [pytest.approx(1 / 3), 0.0]

    def test_a_request_without_relevant_items_has_no_value(self):
        values = per_query(rank_lists(np.array([[7]], np.int32), groups([]), 10), (1,))
        assert all(np.isnan(column[0]) for column in values.values())

    def test_coverage_counts_items_of_any_list(self):
        found = rank_lists(np.array([[0, 1], [1, -1]], np.int32), groups([0], [0]), 4)
        assert coverage(found, 2, 4) == 0.5
        assert coverage(found, 1, 4) == 0.5  # items 0 and 1 lead a list


class TestRoundRobin:
    def test_takes_turns_and_counts_duplicates_once(self):
        # Lists [1, 2, 3] and [2, 4]: first places 1, 2; second places 2 (there already), 4; then 3.
        row, order = np.zeros(5, int), np.array([0, 0, 0, 1, 1])
        position, item = np.array([0, 1, 2, 0, 1]), np.array([1, 2, 3, 2, 4])
        assert round_robin(row, order, position, item, 1, 10, 5).tolist() == [[1, 2, 4, 3, -1]]
        assert round_robin(row, order, position, item, 1, 10, 2).tolist() == [[1, 2]]

    def test_a_gap_left_by_a_masked_item_costs_no_turn(self):
        # The first list lost its first item: its second one stands at the first turn.
        row, order, position, item = np.zeros(2, int), np.array([0, 1]), np.array([5, 0]), np.array([3, 4])
        assert round_robin(row, order, position, item, 1, 10, 2).tolist() == [[3, 4]]

    def test_a_row_without_lists_is_empty(self):
        nothing = np.zeros(0, int)
        assert round_robin(nothing, nothing, nothing, nothing, 2, 10, 2).tolist() == [[-1, -1], [-1, -1]]
