"""Cuts the request table into batches and says which requests each process trains in which step.

Every process computes the same shuffled order from (seed, epoch) and takes its share of each global batch, so all take equally many
steps by construction and nothing waits in a collective; what doesn't fill a last global batch is left out of this epoch and counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

from clrflow.contracts import CONDITION_TYPES
from clrflow.model.batch import Batch
from clrflow.model.losses import log_inclusion
from clrflow.training.catalogue import Catalogue
from clrflow.training.ragged import Index, Ragged
from clrflow.training.requests import RequestTable
from clrflow.training.settings import ConditionSoftness


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """Which requests are trained when; a pure function of its fields, so a resumed run sees what the first would have seen."""

    rows: Index
    batch_size: int
    world_size: int
    seed: int

    @property
    def local_batch(self) -> int:
        """Requests a step and a process; fewer than asked for where the set is smaller than one global batch."""
        return max(1, min(self.batch_size, len(self.rows) // self.world_size))

    @property
    def num_steps(self) -> int:
        return len(self.rows) // (self.local_batch * self.world_size)

    @property
    def num_dropped(self) -> int:
        """Requests left out of each epoch (others each time)."""
        return len(self.rows) - self.num_steps * self.local_batch * self.world_size

    def batches(self, epoch: int, rank: int, first_step: int = 0) -> Iterator[tuple[int, Index]]:
        """(step, requests) from `first_step` on."""
        order = np.random.default_rng([self.seed, epoch]).permutation(self.rows)
        for step in range(first_step, self.num_steps):
            start = (step * self.world_size + rank) * self.local_batch
            yield step, order[start : start + self.local_batch]


class Collator:
    """Turns request rows into a Batch.

    num_negatives uniform items are drawn a step; from as many as the catalogue has on, all items are candidates (full softmax).
    softness says with which weight a request's other targets count under each of its conditions.
    """

    def __init__(self, requests: RequestTable, catalogue: Catalogue, num_negatives: int, softness: ConditionSoftness | None = None):
        self.requests, self.catalogue = requests, catalogue
        by_type = softness.model_dump() if softness else {}
        self.softness = np.array([by_type.get(name, 0.0) for name in CONDITION_TYPES], dtype=np.float32)
        self.num_negatives = min(num_negatives, len(catalogue))
        self.target_share = torch.from_numpy(catalogue.target_share)

    def training(self, rows: Index, generator: np.random.Generator) -> Batch:
        """Requests with the conditions that have targets, their targets and the step's negatives."""
        requests = self.requests
        target_places, target_offsets = requests.targets.places(rows)
        wanted = requests.target_conditions[target_places]
        items, weights = requests.target_items[target_places], requests.target_weights[target_places]
        request_of_target = np.repeat(np.arange(len(rows)), np.diff(target_offsets))
        # Conditions without a target teach nothing: keep the distinct (request, condition) pairs that have one.
        pairs = np.unique(np.stack([request_of_target, wanted], axis=1)[wanted >= 0], axis=0)
        query_rows = Ragged(pairs[:, 1], np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0], minlength=len(rows)))]))
        query_of_pair = 1 + np.arange(len(pairs)) - query_rows.offsets[pairs[:, 0]]
        query_of_target = np.zeros(len(wanted), dtype=np.int64)
        conditioned = wanted >= 0
        pair_of_target = np.searchsorted(_key(pairs), _key(np.stack([request_of_target, wanted], axis=1)[conditioned]))
        query_of_target[conditioned] = query_of_pair[pair_of_target]
        if self.softness.any():
            # What else the user wanted in this request, under every condition: the condition tilts the user's taste, it isn't a filter.
            asked = np.flatnonzero(~conditioned)
            whole = Ragged(asked, np.concatenate([[0], np.cumsum(np.bincount(request_of_target[asked], minlength=len(rows)))]))
            also = whole.take(pairs[:, 0])
            types = requests.condition_types[requests.conditions.offsets[rows[pairs[:, 0]]] + pairs[:, 1]]
            request_of_target = np.concatenate([request_of_target, request_of_target[also.values]])
            query_of_target = np.concatenate([query_of_target, np.repeat(query_of_pair, also.lengths)])
            items = np.concatenate([items, items[also.values]])
            weights = np.concatenate([weights, weights[also.values] * np.repeat(self.softness[types], also.lengths)])
        if self.num_negatives >= len(self.catalogue):
            negatives = np.arange(len(self.catalogue))
        else:
            negatives = np.unique(generator.integers(0, len(self.catalogue), self.num_negatives))
        return self._build(rows, query_rows, request_of_target, query_of_target, items, weights, negatives)

    def queries(self, rows: Index, conditions: Ragged) -> Batch:
        """Requests with the given conditions (places within each request) and no targets; query 0 stays the unconditional one."""
        nothing = np.zeros(0, dtype=np.int64)
        return self._build(rows, conditions, nothing, nothing, nothing, nothing.astype(np.float32), nothing)

    def _build(
        self, rows: Index, query_rows: Ragged, request_of_target: Index, query_of_target: Index, target_items: Index,
        target_weights: np.ndarray, negatives: Index,
    ) -> Batch:  # fmt: skip
        requests, catalogue = self.requests, self.catalogue
        num_requests = len(rows)
        history, present = requests.history.take(rows).padded(int(max(requests.history.lengths[rows].max(initial=0), 1)), front=True)
        actions, _ = requests.actions.take(rows).padded(history.shape[1], front=True)
        times_s, _ = requests.times_s.take(rows).padded(history.shape[1], front=True)

        flat = requests.conditions.offsets[:-1][rows][np.repeat(np.arange(num_requests), query_rows.lengths)] + query_rows.values
        num_queries = int(query_rows.lengths.max(initial=0)) + 1
        own_items = requests.condition_items.take(flat)
        flat_items, flat_has = own_items.padded(int(max(own_items.lengths.max(initial=0), 1)))

        def per_query(values: np.ndarray) -> np.ndarray:
            """Values of the conditions [n, ...] → [B, Q, ...], zeros for the unconditional query and for padding."""
            out = np.zeros((num_requests, num_queries, *values.shape[1:]), dtype=values.dtype)
            request = np.repeat(np.arange(num_requests), query_rows.lengths)
            place = np.arange(len(flat)) - np.repeat(query_rows.offsets[:-1], query_rows.lengths) + 1
            out[request, place] = values
            return out

        candidates = np.unique(np.concatenate([target_items, negatives]))
        distinct = np.unique(np.concatenate([candidates, history.ravel()[present.ravel()], flat_items.ravel()[flat_has.ravel()], [0]]))
        items, interest_rows, query_interests = catalogue.item_rows_and(distinct, requests.condition_interests[flat])
        board_rows, query_boards = np.unique(requests.condition_boards[flat], return_inverse=True)
        query_present = per_query(np.ones(len(flat), dtype=bool))
        query_present[:, 0] = True

        candidate_of_target = np.searchsorted(candidates, target_items)
        num_engagements = int((query_of_target == 0).sum())  # each has one unconditional target, whatever else it has
        _, user = np.unique(requests.users[rows], return_inverse=True)
        positives = np.zeros((user.max(initial=0) + 1, len(candidates)), dtype=bool)
        positives[user[request_of_target], candidate_of_target] = True
        inclusion = log_inclusion(self.target_share[torch.from_numpy(candidates)], num_engagements, self.num_negatives, len(catalogue))

        def place_of(item_places: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.searchsorted(distinct, item_places))

        return Batch(
            items=items,
            interest_rows=torch.from_numpy(interest_rows),
            board_rows=torch.from_numpy(board_rows),
            history=place_of(np.where(present, history, 0)),
            actions=torch.from_numpy(actions),
            times_s=torch.from_numpy(times_s),
            present=torch.from_numpy(present),
            query_types=torch.from_numpy(per_query(requests.condition_types[flat])),
            query_present=torch.from_numpy(query_present),
            query_interests=torch.from_numpy(per_query(query_interests)),
            query_boards=torch.from_numpy(per_query(query_boards)),
            query_items=place_of(per_query(np.where(flat_has, flat_items, 0))),
            query_has_item=torch.from_numpy(per_query(flat_has)),
            target_queries=torch.from_numpy(request_of_target * num_queries + query_of_target),
            target_items=place_of(target_items),
            target_weights=torch.from_numpy(target_weights),
            candidates=place_of(candidates),
            log_inclusion=inclusion,
            user_positives=torch.from_numpy(positives[user]),
        )


def _key(pairs: Index) -> Index:
    """(request, condition) as one sortable number; a request never has 2^20 conditions."""
    return (pairs[:, 0] << 20) + pairs[:, 1]
