"""Ranks the whole catalogue for each query, in chunks, by the worst list that the scores allow.

Among equal scores every irrelevant item stands before every relevant one, so a scorer that gives all items one score gains nothing:
it hits only where the catalogue is so small that the list must hold the item. An item whose score is -inf (or NaN) isn't in the list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from clrflow.evaluation.groups import Array, Groups

CHUNK_BYTES = 128 << 20
"""Memory of one chunk's scores and of what sorting them takes."""
_BYTES_A_SCORE = 16

Scorer = Callable[[Array], Array]
"""Given query rows, int64 [q], gives scores float32 [q, num_items] in the catalogue's order; the caller may write into them."""


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The best items of each query and where its relevant items stand among them."""

    lists: Array
    """int32 [num_queries, depth]: places in the catalogue, best first; -1 where no more items are rankable."""
    ranks: Array
    """int32, one a relevant pair in the order of `relevant`: 1-based place in the list, 0 where it isn't among the first `depth`."""
    relevant: Groups
    """What counts as right for each query, places in the catalogue."""

    def take(self, queries: Array) -> Ranking:
        """The ranking of some of the queries."""
        chosen = self.relevant.take(queries)
        return Ranking(self.lists[queries], Groups(self.relevant.offsets, self.ranks).take(queries).values, chosen)


def rank(scorer: Scorer, relevant: Groups, masked: Groups, depth: int, num_items: int, request_of: Array | None = None) -> Ranking:
    """Rank all items for all queries.

    relevant: one row a query. masked: one row a request, items that are left out; `request_of` int64 [num_queries] says which request a
    query belongs to, None when they are the same. depth: length of the lists, at most num_items are filled.
    """
    num_queries = len(relevant)
    lists = np.full((num_queries, depth), -1, np.int32)
    ranks = np.zeros(len(relevant.values), np.int32)
    step = max(1, CHUNK_BYTES // max(1, num_items * _BYTES_A_SCORE))
    for start in range(0, num_queries, step):
        rows = np.arange(start, min(start + step, num_queries))
        scores = scorer(rows)
        scores[np.isnan(scores)] = -np.inf
        hidden = masked.take(rows if request_of is None else request_of[rows])
        scores[hidden.row_of, hidden.values] = -np.inf
        wanted = relevant.take(rows)
        found = worst_lists(scores, wanted, depth)
        lists[rows, : found.shape[1]] = found
        ranks[relevant.offsets[start] : relevant.offsets[start + len(rows)]] = ranks_in(found, wanted, num_items)
    return Ranking(lists, ranks, relevant)


def rank_lists(lists: Array, relevant: Groups, num_items: int) -> Ranking:
    """The ranking of ready-made lists, int32 [num_queries, depth] without duplicates, -1 behind the last item."""
    return Ranking(lists, ranks_in(lists, relevant, num_items), relevant)


def worst_lists(scores: Array, relevant: Groups, depth: int) -> Array:
    """The first `depth` items of each row, int32 [q, min(depth, n)], -1 where the score is -inf; ties: irrelevant first, then by place.

    Why depth + m + 1 candidates are enough, m being the most relevant items of a row: if a group of ties reaches beyond the candidates,
    at least depth + 1 of the candidates are irrelevant and stand before the group's relevant items, which hence fall off the list
    whichever of the group were picked.
    """
    num_items = scores.shape[1]
    depth = min(depth, num_items)
    is_relevant = np.zeros(scores.shape, bool)
    is_relevant[relevant.row_of, relevant.values] = True
    num_candidates = depth + int(relevant.counts.max(initial=0)) + 1
    if num_candidates < num_items:
        candidates = np.argpartition(scores, num_items - num_candidates, axis=1)[:, num_items - num_candidates :]
    else:
        candidates = np.broadcast_to(np.arange(num_items), scores.shape)
    values = np.take_along_axis(scores, candidates, axis=1)
    order = np.lexsort((candidates, np.take_along_axis(is_relevant, candidates, axis=1), -values))[:, :depth]
    best = np.take_along_axis(candidates, order, axis=1)
    listed: Array = np.where(np.take_along_axis(values, order, axis=1) == -np.inf, -1, best).astype(np.int32)
    return listed


def ranks_in(lists: Array, relevant: Groups, num_items: int) -> Array:
    """1-based places of the relevant items in their query's list, int32, 0 where absent."""
    listed = lists >= 0
    keys = (np.arange(len(lists))[:, None] * num_items + lists)[listed]
    places = np.broadcast_to(np.arange(1, lists.shape[1] + 1, dtype=np.int32), lists.shape)[listed]
    order = np.argsort(keys)
    keys, places = keys[order], places[order]
    wanted = relevant.row_of * num_items + relevant.values
    if not len(keys):
        return np.zeros(len(wanted), np.int32)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    ranks: Array = np.where(keys[at] == wanted, places[at], 0).astype(np.int32)
    return ranks
