"""Does a condition help, and does it steer?

Known conditions: the union of the lists that a request's own conditions bring (each `list_length` items, seen ones masked, duplicates
counted once) against the first items of the unconditioned list, cut for each request at the length of its union. Everything in it
was known before the request, so the comparison is fair.
Oracle conditions come from the target's own interests: they only show how well a condition steers, and are labelled so.
Condition match: share of the first ten items under an interest that carry it, with no filter anywhere.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from clrflow.contracts import BOARD, INTEREST, ITEM, KNOWN, ORACLE
from clrflow.evaluation.groups import Array
from clrflow.evaluation.heldout import Catalogue, Conditions, HeldOut
from clrflow.evaluation.intervals import Interval, intervals
from clrflow.evaluation.metrics import per_query
from clrflow.evaluation.ranking import Ranking, rank, rank_lists
from clrflow.evaluation.scorers import by_vectors, flatten_lists, load_query_vectors, round_robin

MATCH_DEPTH = 10


@dataclasses.dataclass(frozen=True)
class Versus:
    """Two ways to fill lists of equal length, on the same requests."""

    name: str
    recall: Interval
    none: Interval
    difference: Interval
    mean_length: float
    num_requests: int
    fixed_length: int | None = None
    """Length of the lists when it is the same for all requests; None: each request's union decides."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "recall": self.recall.as_json(), "none": self.none.as_json(), "difference": self.difference.as_json(),
            "mean_length": self.mean_length, "num_requests": self.num_requests, "fixed_length": self.fixed_length,
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Match:
    """How many of the first ten items carry the interest asked for."""

    role: str
    conditioned: Interval
    none: Interval
    """The same requests' unconditioned lists, held against the same interests."""
    num_conditions: int

    def as_json(self) -> dict[str, Any]:
        return {
            "role": self.role, "conditioned": self.conditioned.as_json(), "none": self.none.as_json(), "num_conditions": self.num_conditions,
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ConditionFigures:
    """All about conditions on one split."""

    split: str
    num_requests: int
    equal_length: list[Versus]
    """All known conditions, then each type alone, against none at the length of their union."""
    merged: list[Versus]
    """Known conditions merged by turns into one list of k, alone and with the unconditioned list, against none at k."""
    oracle: list[Versus]
    """Each oracle condition's first k items against none's, for the targets that the condition was drawn from."""
    match: list[Match]
    by_type: list[dict[str, Any]]
    """Counts a condition type and role, and the recall of a single condition's list."""

    def as_json(self) -> dict[str, Any]:
        return {
            "split": self.split,
            "num_requests": self.num_requests,
            "equal_length": [row.as_json() for row in self.equal_length],
            "merged": [row.as_json() for row in self.merged],
            "oracle": [row.as_json() for row in self.oracle],
            "match": [row.as_json() for row in self.match],
            "by_type": self.by_type,
        }


def measure_conditions(
    held: HeldOut, catalogue: Catalogue, items: Array, query_vectors_uri: str, *,
    list_length: int, cutoffs: tuple[int, ...], max_requests: int, seed: int,
) -> ConditionFigures:  # fmt: skip
    """Rank under every known and oracle condition of the requests (more than `max_requests` are sampled)."""
    rows = np.unique(held.conditions.row)
    if len(rows) > max_requests:
        rows = np.sort(np.random.default_rng(seed).choice(rows, max_requests, replace=False))
    conditions = held.conditions.take(np.isin(held.conditions.row, rows) & np.isin(held.conditions.role, [KNOWN, ORACLE]))
    vectors = load_query_vectors(query_vectors_uri, held.request_ids[conditions.row], conditions.index)
    known = conditions.role == KNOWN
    most = int(np.bincount(conditions.row[known], minlength=1).max(initial=0))
    depth = max(*cutoffs, MATCH_DEPTH)
    plain = load_query_vectors(query_vectors_uri, held.request_ids[rows], np.full(len(rows), -1))
    deep = max(depth, most * list_length)
    none = rank(by_vectors(plain, items), held.relevant.take(rows), held.masked, deep, catalogue.num_items, rows)
    at = np.searchsorted(rows, conditions.row)  # the row of each condition's request in `none`
    users = held.user_ids[rows]

    known_conditions, oracle_conditions = conditions.take(known), conditions.take(~known)
    known_lists = rank(
        by_vectors(vectors[known], items), held.relevant.take(known_conditions.row), held.masked,
        max(depth, list_length), catalogue.num_items, known_conditions.row,
    )  # fmt: skip
    oracle_lists = rank(
        by_vectors(vectors[~known], items), oracle_conditions.targets, held.masked, depth, catalogue.num_items, oracle_conditions.row
    )
    equal_length = [_union_versus("known", known_lists, at[known], none, users, list_length, catalogue.num_items, seed)]
    for kind in (INTEREST, ITEM, BOARD):
        chosen = np.flatnonzero(known_conditions.type == kind)
        if len(chosen):
            lists = known_lists.take(chosen)
            equal_length.append(
                _union_versus(f"known, {kind} only", lists, at[known][chosen], none, users, list_length, catalogue.num_items, seed)
            )
    return ConditionFigures(
        split=held.split,
        num_requests=len(rows),
        equal_length=equal_length,
        merged=_merged(known_lists, at[known], none, users, cutoffs, catalogue.num_items, seed),
        oracle=_oracle(oracle_lists, at[~known], none, users, cutoffs, catalogue.num_items, seed),
        match=[
            _match(KNOWN, known_conditions, known_lists, at[known], none, users, catalogue, seed),
            _match(ORACLE, oracle_conditions, oracle_lists, at[~known], none, users, catalogue, seed),
        ],
        by_type=_by_type(conditions, known_conditions, known_lists, cutoffs),
    )


def _versus(
    name: str,
    recall: Array,
    none: Array,
    users: Array,
    mean_length: float,
    seed: int,
    fixed_length: int | None = None,
    num_requests: int = -1,
) -> Versus:
    columns = intervals({"recall": recall, "none": none, "difference": recall - none}, users, seed=seed)
    num = len(recall) if num_requests < 0 else num_requests
    return Versus(name, columns["recall"], columns["none"], columns["difference"], mean_length, num, fixed_length)


def _union_versus(name: str, lists: Ranking, at: Array, none: Ranking, users: Array, list_length: int, num_items: int, seed: int) -> Versus:
    """The union of the lists of each request against none at the same length; at int64 [num_lists] is the row in `none`."""
    row, _, item = flatten_lists(lists.lists[:, :list_length], at)
    keys = np.unique(row * num_items + item)
    length = np.bincount(keys // num_items, minlength=len(none.lists))
    relevant = none.relevant.row_of * num_items + none.relevant.values
    asked = np.unique(at)
    with np.errstate(invalid="ignore", divide="ignore"):
        union = np.bincount(none.relevant.row_of, np.isin(relevant, keys), minlength=len(length)) / none.relevant.counts
        inside = (none.ranks > 0) & (none.ranks <= length[none.relevant.row_of])
        single = np.bincount(none.relevant.row_of, inside, minlength=len(length)) / none.relevant.counts
    mean_length = float(length[asked].mean()) if len(asked) else 0.0
    return _versus(name, union[asked], single[asked], users[asked], mean_length, seed)


def _merged(lists: Ranking, at: Array, none: Ranking, users: Array, cutoffs: tuple[int, ...], num_items: int, seed: int) -> list[Versus]:
    """Known conditions' lists merged by turns to one list, with and without the unconditioned one."""
    asked = np.unique(at)
    if not len(asked):
        return []
    depth = max(cutoffs)
    row, position, item = flatten_lists(lists.lists[:, :depth], at)
    order = flatten_lists(lists.lists[:, :depth], np.arange(len(at)) + 1)[0]
    plain_row, plain_position, plain_item = flatten_lists(none.lists[asked, :depth], asked)
    alone = round_robin(row, order, position, item, len(none.lists), num_items, depth)
    both = round_robin(
        np.r_[row, plain_row], np.r_[order, np.zeros_like(plain_row)], np.r_[position, plain_position], np.r_[item, plain_item],
        len(none.lists), num_items, depth,
    )  # fmt: skip
    plain = per_query(none, cutoffs)
    found = []
    for name, merged in (("known, by turns", alone), ("known and none, by turns", both)):
        values = per_query(rank_lists(merged, none.relevant, num_items), cutoffs)
        found += [
            _versus(name, values[f"recall@{k}"][asked], plain[f"recall@{k}"][asked], users[asked], float(k), seed, k)
            for k in sorted(cutoffs)
        ]
    return found


def _oracle(lists: Ranking, at: Array, none: Ranking, users: Array, cutoffs: tuple[int, ...], num_items: int, seed: int) -> list[Versus]:
    """Under each oracle condition: its targets among its first k items, and among none's."""
    useful = np.flatnonzero(lists.relevant.counts > 0)
    if not len(useful):
        return []
    chosen = lists.take(useful)
    conditioned = per_query(chosen, cutoffs)
    plain = per_query(rank_lists(none.lists[at[useful]], chosen.relevant, num_items), cutoffs)
    owners = users[at[useful]]
    num_requests = len(np.unique(at[useful]))
    return [
        _versus("oracle", conditioned[f"recall@{k}"], plain[f"recall@{k}"], owners, float(k), seed, k, num_requests)
        for k in sorted(cutoffs)
    ]


def _match(
    role: str, conditions: Conditions, lists: Ranking, at: Array, none: Ranking, users: Array, catalogue: Catalogue, seed: int
) -> Match:
    """Share of the first ten that carry the interest, under it and without a condition."""
    chosen = np.flatnonzero(conditions.type == INTEREST)
    interest = np.searchsorted(catalogue.interest_ids, conditions.id[chosen])
    columns = {
        "conditioned": _carrying(lists.lists[chosen], interest, catalogue),
        "none": _carrying(none.lists[at[chosen]], interest, catalogue),
    }
    found = intervals(columns, users[at[chosen]], seed=seed)
    return Match(role, found["conditioned"], found["none"], len(chosen))


def _carrying(lists: Array, interest: Array, catalogue: Catalogue) -> Array:
    """Share of the first ten items of each list that carry its interest, float64 [num_lists]; NaN for an empty list."""
    row, _, item = flatten_lists(lists[:, :MATCH_DEPTH], np.arange(len(lists)))
    carries = np.asarray(catalogue.interests[item, interest[row]], dtype=float).ravel() if len(item) else np.zeros(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Array = np.bincount(row, carries, minlength=len(lists)) / np.bincount(row, minlength=len(lists))
    return share


def _by_type(conditions: Conditions, known: Conditions, lists: Ranking, cutoffs: tuple[int, ...]) -> list[dict[str, Any]]:
    """How many conditions of each type there are and how many of the request's relevant items a single one finds."""
    values = per_query(lists, cutoffs)
    found = []
    for kind in (INTEREST, ITEM, BOARD):
        of_kind = known.type == kind
        row: dict[str, Any] = {
            "type": kind,
            "num_known": int(of_kind.sum()),
            "num_oracle": int(((conditions.type == kind) & (conditions.role == ORACLE)).sum()),
            "num_requests": len(np.unique(known.row[of_kind])),
        }
        for k in sorted(cutoffs):
            row[f"recall@{k}"] = float(values[f"recall@{k}"][of_kind].mean()) if of_kind.any() else None
        found.append(row)
    return found
