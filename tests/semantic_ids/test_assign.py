"""Unique ids: who moves, where to, and that nothing else does."""

from __future__ import annotations

import numpy as np
import pytest

from clrflow.errors import ConfigError
from clrflow.semantic_ids.assign import unique_codes


def latents(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)[:, None]


def ids(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64)


def test_a_collided_item_moves_to_the_free_code_that_costs_least(quantiser_of):
    # Both are nearest to (0, 0). Moving to code 1 of level 2 (at 1.0) costs 0.4 nearly nothing, 0.1 more: 0.4 moves.
    quantiser = quantiser_of([[0.0, 100.0, 200.0], [0.0, 1.0, 5.0]])
    assigned = unique_codes(latents(0.4, 0.1), ids(2), quantiser)
    assert assigned.nearest.tolist() == [[0, 0], [0, 0]]
    assert assigned.codes.tolist() == [[0, 1], [0, 0]]
    assert assigned.moved == (0, 1)


def test_the_first_code_changes_only_when_the_last_level_is_full(quantiser_of):
    # Four equal items, three ids below code 0: the fourth goes to the nearest other first code (3 is nearer than 50).
    quantiser = quantiser_of([[0.0, 50.0, 3.0], [0.0, 1.0, 2.0]])
    assigned = unique_codes(latents(0.0, 0.0, 0.0, 0.0), ids(4), quantiser)
    # The lowest item ids stay; below code 2 the residual is -3, nearest to 0.
    assert assigned.codes.tolist() == [[0, 0], [0, 1], [0, 2], [2, 0]]
    assert assigned.moved == (1, 2)


def test_every_id_can_be_given_out(quantiser_of):
    quantiser = quantiser_of([[0.0, 5.0, 9.0]] * 3)
    rng = np.random.default_rng(0)
    assigned = unique_codes(rng.normal(size=(27, 1)), ids(27), quantiser)
    assert len(np.unique(assigned.codes, axis=0)) == 27


def test_more_items_than_ids_are_refused_with_both_numbers(quantiser_of):
    quantiser = quantiser_of([[0.0, 5.0, 9.0]] * 2)
    with pytest.raises(ConfigError, match=r"num_levels=2.*num_codes=3 give 9 ids for 10 items.*raise"):
        unique_codes(np.zeros((10, 1)), ids(10), quantiser)


def test_a_thousand_equal_items_get_a_thousand_ids(quantiser_of):
    # 16 codes and 4 levels: 62 prefixes of 3 codes are filled, the 63rd takes the last 8 (1000 = 62 * 16 + 8).
    levels = [[float(code) for code in range(16)]] * 4
    assigned = unique_codes(np.zeros((1000, 1)), ids(1000), quantiser_of(levels))
    assert len(np.unique(assigned.codes, axis=0)) == 1000
    _, sizes = np.unique(assigned.codes[:, :3], axis=0, return_counts=True)
    assert sorted(sizes.tolist()) == [8] + [16] * 62
    # 16 ** 3 ids lie below a first code, so none of them had to leave it.
    assert set(assigned.codes[:, 0].tolist()) == {0}


def test_the_order_of_the_rows_does_not_matter(quantiser_of):
    quantiser = quantiser_of([[0.0, 1.0, 2.0, 3.0]] * 3)
    rng = np.random.default_rng(0)
    values, item_ids = rng.choice([0.0, 0.4, 1.1], size=(40, 1)), ids(40)
    shuffled = rng.permutation(40)
    straight = unique_codes(values, item_ids, quantiser).codes
    assert np.array_equal(unique_codes(values[shuffled], item_ids[shuffled], quantiser).codes, straight[shuffled])


def test_ids_in_use_are_left_alone_and_gone_around(quantiser_of):
    quantiser = quantiser_of([[0.0, 50.0], [0.0, 1.0]])
    taken = np.array([[0, 0], [0, 1]], dtype=np.int32)
    assert unique_codes(latents(0.2), ids(1), quantiser, taken=taken).codes.tolist() == [[1, 0]]


def test_ids_hold_more_than_63_bits(quantiser_of):
    # 8 levels of 512 codes are 2 ** 72 ids.
    quantiser = quantiser_of([[float(code) for code in range(512)]] * 8)
    assert len(np.unique(unique_codes(np.zeros((600, 1)), ids(600), quantiser).codes, axis=0)) == 600
