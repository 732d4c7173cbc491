"""The figures, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from clrflow.semantic_ids import quality


def test_perplexity_is_the_number_of_equally_used_codes():
    assert quality.perplexity(np.array([3, 3, 3, 0])) == pytest.approx(3)
    # Shares 3/4 and 1/4: 2 ** 0.8113 bits = 1.7548.
    assert quality.perplexity(np.array([3, 1])) == pytest.approx(1.7548, abs=1e-4)


def test_collision_counts_items_beyond_the_first_of_each_tuple():
    codes = np.array([[0, 1], [0, 1], [0, 2], [1, 0]], dtype=np.int32)
    assert quality.collision(codes) == 0.25
    first, second = quality.levels_of(codes, (4, 4), 4)
    assert (first.used, first.usage, first.prefix_collision) == (2, 0.5, 0.5)
    assert (second.used, second.prefix_collision) == (3, 0.25)


def test_minus_zero_is_zero():
    assert quality.collision(np.array([[0.0], [-0.0]], dtype=np.float32)) == 0.5


def test_cosine_leaves_out_zero_rows():
    embeddings = np.array([[1, 0], [0, 0], [0, 2]], dtype=np.float32)
    reconstructions = np.array([[3, 0], [1, 1], [1, 1]], dtype=np.float32)
    assert quality.mean_cosine(embeddings, reconstructions) == pytest.approx((1 + 0.5**0.5) / 2)
    assert quality.mean_cosine(embeddings[1:2], reconstructions[1:2]) == 1


def test_neighbour_agreement_is_the_jaccard_index_within_a_prefix():
    # Items 0 and 1 share code 0 and have interests {1, 2} and {2, 3}: 1/3. Items 2 and 3 share code 1 and have {5}: 1. Item 4 has none.
    codes = np.array([[0, 0], [0, 1], [1, 0], [1, 0], [1, 0]], dtype=np.int32)
    agreement = quality.neighbour_agreement(codes, np.array([2, 2, 1, 1, 0]), np.array([1, 2, 2, 3, 5, 5]), seed=0)
    # Half of the pairs start in each group, give or take a standard error of 0.0024.
    assert agreement.by_prefix[0] == pytest.approx((1 / 3 + 1) / 2, abs=0.01)
    # Only items 2 and 3 share both codes.
    assert agreement.by_prefix[1] == 1
    # Six pairs of four items: 1/3 and 1 among them, the others 0.
    assert agreement.random == pytest.approx((1 / 3 + 1) / 6, abs=0.02)


def test_an_interest_that_is_listed_twice_counts_once():
    codes = np.zeros((2, 1), dtype=np.int32)
    assert quality.neighbour_agreement(codes, np.array([2, 1]), np.array([4, 4, 4]), seed=0).by_prefix == (1,)


def test_agreement_without_pairs_is_not_made_up():
    agreement = quality.neighbour_agreement(np.zeros((2, 1), dtype=np.int32), np.array([1, 0]), np.array([4]), seed=0)
    assert agreement.by_prefix == (None,)
    assert agreement.random is None
    none = quality.neighbour_agreement(np.zeros((2, 1), dtype=np.int32), np.array([0, 0]), np.array([], dtype=np.int64), seed=0)
    assert none.random is None
