"""A quick full-corpus check between epochs: what picks the best epoch and the schedule. The evaluation step judges, this only chooses.

Unconditional queries of the validation split over all items, seen items masked (those in the history that the model reads).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
import torch.distributed as dist

from clrflow.contracts import VALIDATION
from clrflow.training.batches import Collator
from clrflow.training.catalogue import Catalogue
from clrflow.training.ragged import Index, Ragged
from clrflow.training.requests import RequestTable
from clrflow.training.sharding import ShardedModel
from clrflow.training.vectors import gathered, item_tokens_and_vectors, query_vectors

MAX_REQUESTS = 20_000
RECALL_K, NDCG_K = 50, 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validation:
    """Means over the validation requests that have a target left after masking."""

    recall: float
    """Recall@50."""
    ndcg: float
    """NDCG@10."""
    num_requests: int

    @property
    def score(self) -> float:
        """What is compared: the geometric mean, so that neither the head of the list nor its depth is traded away."""
        return float(np.sqrt(max(self.recall, 0.0) * max(self.ndcg, 0.0)))


def no_conditions(rows: Index) -> Ragged:
    return Ragged(np.zeros(0, dtype=np.int64), np.zeros(len(rows) + 1, dtype=np.int64))


def validate(model: ShardedModel, collator: Collator, requests: RequestTable, catalogue: Catalogue) -> Validation:
    """Collective: every process ranks its share of the requests, all get the same figures."""
    was_training = model.wrapped.training
    model.wrapped.eval()
    _, own = item_tokens_and_vectors(model, catalogue)
    items = torch.from_numpy(gathered(own, len(catalogue)))
    rows = requests.of_split(VALIDATION)
    if len(rows) > MAX_REQUESTS:
        rows = rows[:: len(rows) // MAX_REQUESTS + 1]
    sums = np.zeros(3)
    if len(rows):
        for chunk, _, _, vectors in query_vectors(model, collator, rows, no_conditions):
            sums += _sums(torch.from_numpy(vectors) @ items.T, chunk, requests)
    totals = torch.from_numpy(sums)
    dist.all_reduce(totals)
    recall, ndcg, count = totals.tolist()
    model.wrapped.train(was_training)
    return Validation(recall=recall / max(count, 1), ndcg=ndcg / max(count, 1), num_requests=int(count))


def _sums(scores: torch.Tensor, rows: Index, requests: RequestTable) -> np.ndarray:
    """Sums of recall, NDCG and requests over the given rows; scores [n, N]."""
    relevant = torch.zeros_like(scores, dtype=torch.bool)
    places, offsets = requests.targets.places(rows)
    relevant[torch.from_numpy(np.repeat(np.arange(len(rows)), np.diff(offsets))), torch.from_numpy(requests.target_items[places])] = True
    seen = requests.history.take(rows)
    seen_at = (torch.from_numpy(np.repeat(np.arange(len(rows)), seen.lengths)), torch.from_numpy(seen.values))
    relevant[seen_at] = False
    scores[seen_at] = float("-inf")
    k = min(RECALL_K, scores.shape[1])
    hits = relevant.gather(1, scores.topk(k, dim=1).indices).double()
    num_relevant = relevant.sum(1)
    counted = num_relevant > 0
    discounts = 1 / torch.log2(torch.arange(k).double() + 2)
    ideal = torch.cumsum(discounts, 0)[num_relevant.clamp(1, min(NDCG_K, k)) - 1]
    recall = hits.sum(1) / num_relevant.clamp(min=1)
    ndcg = (hits * discounts)[:, :NDCG_K].sum(1) / ideal
    return np.array([recall[counted].sum().item(), ndcg[counted].sum().item(), counted.sum().item()])
