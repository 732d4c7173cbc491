"""Which of a user's items stand for the others."""

from __future__ import annotations

import numpy as np
import pytest

from clrflow.bootstrap.generators.medoids import greedy_medoids

NORTH, EAST, NORTH_EAST = (0.0, 1.0), (1.0, 0.0), (0.6, 0.8)


def pick(*vectors: tuple[float, float], num_medoids: int = 2, length: int = 5) -> tuple[list[int], list[float]]:
    padded = np.zeros((1, length, 2), np.float32)
    padded[0, : len(vectors)] = np.reshape(vectors, (-1, 2))
    valid = np.arange(length)[None, :] < len(vectors)
    places, shares = greedy_medoids(padded, valid, num_medoids)
    return places[0].tolist(), shares[0].tolist()


def test_each_cluster_gets_its_medoid_and_the_larger_one_comes_first() -> None:
    places, shares = pick(EAST, NORTH, NORTH, NORTH)
    assert places == [1, 0]  # of equal items the newest
    assert shares[0] > shares[1]
    assert sum(shares) == pytest.approx(1.0)


def test_the_item_in_the_middle_covers_most() -> None:
    # Coverage of the middle: 0.8 + 1 + 0.6 = 2.4; of either end: 1 + 0.8 (or 0.6) + 0.
    assert pick(NORTH, NORTH_EAST, EAST, num_medoids=1)[0] == [1]


def test_no_medoid_is_added_that_covers_nothing_new() -> None:
    assert pick(NORTH, NORTH, num_medoids=3)[0] == [0, -1, -1]


def test_a_user_without_items_has_none() -> None:
    assert pick() == ([-1, -1], [0.0, 0.0])


def test_one_user_alone_and_in_a_batch_get_the_same() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(40, 12, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    valid = np.arange(12)[None, :] < random.integers(0, 13, 40)[:, None]
    together = greedy_medoids(vectors, valid, 3)
    alone = [greedy_medoids(vectors[row : row + 1], valid[row : row + 1], 3) for row in range(40)]
    assert (together[0] == np.concatenate([places for places, _ in alone])).all()
    assert (together[1] == np.concatenate([shares for _, shares in alone])).all()
