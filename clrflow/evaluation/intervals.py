"""Confidence intervals by bootstrap over users: a user's requests resemble each other, so users are drawn, not requests.

The statistic stays the mean over requests. Percentile intervals (Efron, Bootstrap methods, 1979), seeded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from clrflow.evaluation.groups import Array

NUM_RESAMPLES = 1000
_BLOCK = 50
"""Resamples drawn at a time; bounds memory to so many times the number of users."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval; NaN where there is nothing to average."""

    mean: float
    low: float
    high: float
    num: int
    """Values averaged."""

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}]"

    def as_json(self) -> dict[str, float | int | None]:
        low, high = (None if np.isnan(value) else value for value in (self.low, self.high))
        return {"mean": None if np.isnan(self.mean) else self.mean, "low": low, "high": high, "num": self.num}


def resampled_means(values: Mapping[str, Array], users: Array, seed: int = 0, num_resamples: int = NUM_RESAMPLES) -> dict[str, Array]:
    """Means of each column over resampled users, float64 [num_resamples]; all columns see the same draws, NaN values are left out."""
    names = list(values)
    _, owner = np.unique(users, return_inverse=True)
    num_users = int(owner.max(initial=-1)) + 1
    if not num_users or not names:
        return {name: np.full(num_resamples, np.nan) for name in names}
    stacked = np.stack([np.asarray(values[name], float) for name in names], axis=1)
    known = ~np.isnan(stacked)
    sums, counts = np.zeros((num_users, len(names))), np.zeros((num_users, len(names)))
    np.add.at(sums, owner, np.where(known, stacked, 0.0))
    np.add.at(counts, owner, known)
    draws = np.random.default_rng(seed)
    means = np.empty((num_resamples, len(names)))
    for start in range(0, num_resamples, _BLOCK):
        block = min(_BLOCK, num_resamples - start)
        drawn = draws.integers(num_users, size=(block, num_users)) + np.arange(block)[:, None] * num_users
        times = np.bincount(drawn.ravel(), minlength=block * num_users).reshape(block, num_users).astype(float)
        with np.errstate(invalid="ignore", divide="ignore"):
            means[start : start + block] = (times @ sums) / (times @ counts)
    return {name: means[:, column] for column, name in enumerate(names)}


def intervals(values: Mapping[str, Array], users: Array, confidence: float = 0.95, seed: int = 0) -> dict[str, Interval]:
    """Mean and interval of each column of values [num_requests]; `users` int64 [num_requests] says whose request it is."""
    means = resampled_means(values, users, seed)
    return {name: _interval(np.asarray(column, float), means[name], confidence) for name, column in values.items()}


def unpaired_difference(new: Array, new_users: Array, old: Array, old_users: Array, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Interval of mean(new) - mean(old) when the two were measured on different requests."""
    a = resampled_means({"value": new}, new_users, seed)["value"]
    b = resampled_means({"value": old}, old_users, seed + 1)["value"]
    low, high = _bounds(a - b, confidence)
    mean = float(np.nanmean(new) - np.nanmean(old)) if len(new) and len(old) else float("nan")
    return Interval(mean, low, high, len(new))


def _interval(column: Array, means: Array, confidence: float) -> Interval:
    known = column[~np.isnan(column)]
    if not len(known):
        return Interval(float("nan"), float("nan"), float("nan"), 0)
    return Interval(float(known.mean()), *_bounds(means, confidence), len(known))


def _bounds(means: Array, confidence: float) -> tuple[float, float]:
    means = means[~np.isnan(means)]
    if not len(means):
        return float("nan"), float("nan")
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
