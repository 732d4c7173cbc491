"""Sampled softmax over a shared candidate set, corrected for how candidates were drawn.

The set of a step holds each candidate once: the step's targets and uniform draws. A candidate that is in the set with probability P
stands for 1/P items, so its logit gets -log P (the logQ correction; Yi et al., "Sampling-bias-corrected neural modeling for large
corpus item recommendations", 2019, here with the inclusion probability, as candidates are distinct). The positive is always there
and gets none. With all items as candidates P is 1 and this is the full softmax.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_inclusion(target_share: Tensor, num_targets: int, num_uniform: int, num_items: int) -> Tensor:
    """log P(candidate is in the set) [C]: after num_targets draws by target_share [C] and num_uniform uniform draws from num_items.

    From num_uniform = num_items on, all items are taken instead of drawn, and P is 1.
    """
    if num_uniform >= num_items:
        return torch.zeros_like(target_share)
    missed_by_targets = torch.log1p(-target_share.double().clamp(max=1 - 1e-9)) * num_targets
    missed = missed_by_targets + num_uniform * math.log1p(-1 / num_items)
    return torch.log(-torch.expm1(missed)).to(target_share.dtype)


def sampled_softmax(
    queries: Tensor,
    query_of: Tensor,
    positives: Tensor,
    candidates: Tensor,
    log_inclusion: Tensor,
    hidden: Tensor,
    scale: Tensor,
) -> Tensor:
    """Cross-entropy of each positive against its query's negatives.

    queries [m, D], candidates [C, D] and positives [n, D] are unit vectors; query_of [n] says whose positive each is; log_inclusion [C];
    hidden [m, C] bool marks candidates that are no negatives of a query: its positives themselves (accidental hits) and the user's
    other ones; scale [] = 1 / temperature → losses [n]. The negatives of a query are summed up once, however many positives it has.
    """
    against = (queries @ candidates.T * scale - log_inclusion).masked_fill(hidden, float("-inf"))
    negatives = torch.logsumexp(against, dim=1)
    right = (queries[query_of] * positives).sum(-1) * scale
    return torch.logaddexp(right, negatives[query_of]) - right


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Σ w·l / Σ w; zero, with a gradient of zero, where there is nothing to weigh."""
    return (losses * weights).sum() / weights.sum().clamp(min=1e-12)
