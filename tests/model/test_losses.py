"""Sampled softmax: worked out by hand, masked where it must be, and corrected with the right sign."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from torch import tensor

from clrflow.model.losses import log_inclusion, sampled_softmax, weighted_mean

ONE = tensor(1.0)
AXES = torch.eye(3)


def test_a_positive_is_weighed_against_all_negatives() -> None:
    # query = axis 0; positive scores 1, candidates (axes 1, 2) score 0 → log(e^1 + 2) - 1
    nothing = torch.zeros(1, 2, dtype=torch.bool)
    loss = sampled_softmax(AXES[:1], tensor([0]), AXES[:1], AXES[1:], torch.zeros(2), nothing, ONE)
    assert loss.item() == pytest.approx(log(exp(1) + 2) - 1)


def test_the_same_item_is_not_a_negative_of_itself() -> None:
    # The candidate list holds the positive (axis 0) too; hidden, so only axes 1 and 2 count.
    hidden = tensor([[True, False, False]])
    loss = sampled_softmax(AXES[:1], tensor([0]), AXES[:1], AXES, torch.zeros(3), hidden, ONE)
    assert loss.item() == pytest.approx(log(exp(1) + 2) - 1)


def test_a_query_with_two_positives_is_summed_up_once_and_equals_two_queries() -> None:
    queries, positives = torch.nn.functional.normalize(torch.randn(2, 3), dim=1), torch.nn.functional.normalize(torch.randn(3, 3), dim=1)
    hidden = torch.zeros(2, 3, dtype=torch.bool)
    shared = sampled_softmax(queries, tensor([0, 0, 1]), positives, AXES, torch.zeros(3), hidden, tensor(5.0))
    apart = sampled_softmax(queries[[0, 0, 1]], tensor([0, 1, 2]), positives, AXES, torch.zeros(3), hidden[[0, 0, 1]], tensor(5.0))
    torch.testing.assert_close(shared, apart)


def test_a_query_without_any_negative_costs_nothing() -> None:
    loss = sampled_softmax(AXES[:1], tensor([0]), AXES[:1], AXES, torch.zeros(3), torch.ones(1, 3, dtype=torch.bool), ONE)
    assert loss.item() == pytest.approx(0.0)


def test_the_correction_raises_rare_candidates_over_popular_ones() -> None:
    # A candidate that is drawn with P = 1/2 stands for two items, one with P = 1 for itself.
    correction = log_inclusion(tensor([1.0, 0.0]), num_targets=10, num_uniform=1, num_items=2)
    assert correction[0].item() == pytest.approx(0.0, abs=1e-6)  # always among the targets
    assert correction[1].item() == pytest.approx(log(0.5), abs=1e-6)
    common, rare = (
        sampled_softmax(AXES[:1], tensor([0]), AXES[:1], AXES[1:2], correction[at : at + 1], torch.zeros(1, 1, dtype=torch.bool), ONE)
        for at in (0, 1)
    )
    assert rare > common


def test_the_corrected_sum_is_unbiased() -> None:
    """Over many draws, Σ exp(score)/P over the set has the mean Σ exp(score) over all items."""
    generator = torch.Generator().manual_seed(0)
    num_items, num_targets, num_uniform, rounds = 20, 5, 4, 4000
    share = torch.softmax(torch.randn(num_items, generator=generator), 0)
    weights = torch.exp(torch.randn(num_items, generator=generator))
    inclusion = log_inclusion(share, num_targets, num_uniform, num_items)
    total = 0.0
    for _ in range(rounds):
        targets = torch.multinomial(share, num_targets, replacement=True, generator=generator)
        uniform = torch.randint(num_items, (num_uniform,), generator=generator)
        drawn = torch.unique(torch.cat([targets, uniform]))
        total += (weights[drawn] / inclusion[drawn].exp()).sum().item()
    assert total / rounds == pytest.approx(weights.sum().item(), rel=0.03)


def test_all_items_as_candidates_need_no_correction() -> None:
    assert log_inclusion(torch.full((4,), 0.25), num_targets=3, num_uniform=4, num_items=4).tolist() == [0, 0, 0, 0]


def test_the_mean_of_nothing_is_zero_and_has_a_gradient() -> None:
    losses = torch.ones(2, requires_grad=True)
    mean = weighted_mean(losses, torch.zeros(2))
    mean.backward()
    assert mean.item() == 0.0
    assert losses.grad is not None
    assert losses.grad.tolist() == [0, 0]
