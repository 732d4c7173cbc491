"""Rows of tables: exact where everything fits, hashed within bounds where it doesn't, never a wrong row for an unknown id."""

from __future__ import annotations

import numpy as np

from clrflow.model.settings import ModelSettings
from clrflow.model.tables import TableSizes, hashed_rows, mix, semantic_prefix_rows, vocabulary_rows


def test_prefixes_that_fit_have_rows_of_their_own() -> None:
    codes = np.array([[1, 2], [1, 3], [0, 2]], dtype=np.int32)
    # level 1: the code; level 2: 4 * first + second
    assert semantic_prefix_rows(codes, num_codes=4, max_rows=16).tolist() == [[1, 6], [1, 7], [0, 2]]


def test_longer_prefixes_are_hashed_into_the_table_and_keep_items_with_one_prefix_together() -> None:
    codes = np.random.default_rng(0).integers(0, 2048, (500, 5)).astype(np.int32)
    codes[1] = codes[0]
    rows = semantic_prefix_rows(codes, num_codes=2048, max_rows=5000)
    assert rows.min() >= 0
    assert rows.max() < 5000
    assert (rows[0] == rows[1]).all()
    assert len(np.unique(rows[:, 4])) > 450  # 499 distinct prefixes in 5,000 rows: about 25 collide


def test_unknown_ids_take_row_zero_and_known_ones_their_place_plus_one() -> None:
    vocabulary = np.array([-5, 3, 2**60 + 1])
    assert vocabulary_rows(np.array([2**60 + 1, -5, 2**60, 3, 9]), vocabulary).tolist() == [3, 1, 0, 2, 0]
    assert vocabulary_rows(np.array([1, 2]), np.array([], dtype=np.int64)).tolist() == [0, 0]


def test_hashing_is_the_same_for_ever_and_takes_every_int64() -> None:
    ids = np.array([0, 1, -1, 2**62, -(2**63)])
    assert mix(ids).tolist() == [
        16294208416658607535,
        10451216379200822465,
        16490336266968443936,
        47939714376772075,
        5196802822362493915,
    ]
    assert hashed_rows(ids, 7).min() >= 0
    assert hashed_rows(ids, 7).max() < 7


def test_a_table_never_has_more_rows_than_prefixes() -> None:
    sizes = TableSizes(num_items=10, num_interests=3, num_levels=3, num_codes=4).rows(ModelSettings(semantic_rows=20, board_rows=5))
    assert sizes == {"item": 11, "interest": 4, "board": 5, "semantic_1": 4, "semantic_2": 16, "semantic_3": 20}
