"""Bootstrap intervals: over users, paired, seeded."""

from __future__ import annotations

import numpy as np
import pytest

from clrflow.evaluation.intervals import intervals, resampled_means, unpaired_difference


def test_the_mean_is_over_requests():
    found = intervals({"x": np.array([1.0, 0.0, 0.0, 0.0])}, np.array([1, 2, 2, 2]))["x"]
    assert (found.mean, found.num) == (0.25, 4)


def test_equal_values_have_an_interval_of_no_width():
    found = intervals({"x": np.full(10, 0.3)}, np.arange(10))["x"]
    assert (found.low, found.high) == (pytest.approx(0.3), pytest.approx(0.3))


def test_width_is_that_of_the_normal_approximation():
    # 400 users, half 0 and half 1: standard error .5 / sqrt(400) = .025, so the 95 % interval is .5 -+ .049.
    found = intervals({"x": np.arange(400) % 2}, np.arange(400))["x"]
    assert found.low == pytest.approx(0.451, abs=0.005)
    assert found.high == pytest.approx(0.549, abs=0.005)


def test_requests_of_one_user_are_no_independent_evidence():
    # The same 400 values, but each user has 100 alike: 4 users make the interval about ten times as wide.
    values = np.repeat([0.0, 1.0, 0.0, 1.0], 100)
    found = intervals({"x": values}, np.repeat(np.arange(4), 100))["x"]
    assert found.high - found.low > 0.7


def test_columns_share_their_draws_so_a_constant_difference_has_no_width():
    draws = np.random.default_rng(0).random(50)
    means = resampled_means({"a": draws + 0.1, "b": draws}, np.arange(50))
    assert np.ptp(means["a"] - means["b"]) < 1e-12


def test_the_seed_decides():
    values, users = {"x": np.random.default_rng(0).random(50)}, np.arange(50)
    assert intervals(values, users, seed=1) == intervals(values, users, seed=1)
    assert intervals(values, users, seed=1) != intervals(values, users, seed=2)


def test_values_that_are_no_numbers_are_left_out_and_nothing_is_nan():
    found = intervals({"some": np.array([np.nan, 1.0]), "none": np.array([np.nan, np.nan])}, np.array([1, 2]))
    assert (found["some"].mean, found["some"].num) == (1.0, 1)
    assert np.isnan(found["none"].mean)
    assert found["none"].as_json() == {"mean": None, "low": None, "high": None, "num": 0}


def test_two_samples_differ_by_more_than_chance_or_not():
    low, high = np.zeros(100), np.ones(100)
    assert unpaired_difference(high, np.arange(100), low, np.arange(100)).low == 1.0
    mixed = np.arange(100) % 2
    found = unpaired_difference(mixed, np.arange(100), mixed, np.arange(100))
    assert found.low < 0 < found.high
