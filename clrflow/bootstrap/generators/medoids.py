"""Picks the items that best stand for a user's recent ones: greedy medoids under cosine similarity, for many users at once.

A medoid is one of the user's own items, so a condition can be shown and needs no vector of its own. Each pick adds the most coverage, where
an item is covered as well as its nearest medoid resembles it and recent items count more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GRID = 2.0**16
"""Similarities are rounded to this grid, so that sums are exact and equal whatever the batch and the order."""
HALF_LIFE = 20.0
"""Engagements after which an item counts half."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def greedy_medoids(vectors: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_], num_medoids: int) -> tuple[Ints, Floats]:
    """Places and weights of the medoids of each row.

    vectors: [B, R, D] unit vectors, newest first; valid: [B, R], False where a user has fewer than R items.
    Returns places [B, M], -1 where there are no more items worth adding, and shares [B, M]: how much of the user's recent items, by recency,
    is nearest to each.
    """
    num_rows, length, _ = vectors.shape
    similarity = np.rint(np.clip(np.matmul(vectors, vectors.transpose(0, 2, 1)), 0.0, 1.0).astype(np.float64) * GRID)
    similarity *= valid[:, :, None] & valid[:, None, :]
    weights = np.rint(GRID * 0.5 ** (np.arange(length) / HALF_LIFE))[None, :] * valid
    rows = np.arange(num_rows)
    covered = np.zeros((num_rows, length))
    places = np.full((num_rows, num_medoids), -1, dtype=np.int64)
    for pick in range(num_medoids):
        gains = np.einsum("bij,bj->bi", np.maximum(similarity - covered[:, None, :], 0.0), weights)
        gains[~valid] = -1.0
        chosen = gains.argmax(axis=1)  # the first of equal ones: the newest
        worth = gains[rows, chosen] > 0
        places[:, pick] = np.where(worth, chosen, -1)
        covered = np.where(worth[:, None], np.maximum(covered, similarity[rows, chosen]), covered)
    to_medoids = np.take_along_axis(similarity, np.maximum(places, 0)[:, :, None], axis=1)  # [B, M, R]
    to_medoids[places < 0] = -1.0
    nearest = to_medoids.argmax(axis=1)  # [B, R]
    owned = (nearest[:, None, :] == np.arange(num_medoids)[None, :, None]) * weights[:, None, :]
    return places, owned.sum(axis=2) / np.maximum(weights.sum(axis=1), 1.0)[:, None]
