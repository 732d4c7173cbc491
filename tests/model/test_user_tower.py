"""The block mask: many conditions on one history pass are exactly what each would be alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clrflow.model.settings import ModelSettings
from clrflow.model.user_tower import UserTower, gap_buckets

SETTINGS = ModelSettings(dim=8, num_heads=2, num_layers=2, max_history=6, dropout=0.0)


@pytest.fixture
def tower() -> UserTower:
    torch.manual_seed(0)
    tower = UserTower(SETTINGS, num_actions=2, num_condition_types=4)
    torch.nn.init.normal_(tower.start, std=0.5)
    for table in (tower.recency, tower.gaps, tower.actions, tower.condition_types):
        torch.nn.init.normal_(table.weight, std=0.5)  # large, so that a leak would show
    return tower.eval()


def encode(tower: UserTower, tokens: Tensor, conditions: Tensor, types: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """History outputs and condition vectors of a batch with seconds 0, 10, 20, …"""
    batch, length = tokens.shape[:2]
    times = torch.arange(length).expand(batch, length) * 10
    present = torch.ones(batch, length, dtype=torch.bool) if present is None else present
    actions = torch.zeros(batch, length, dtype=torch.int64)
    outputs, caches, seen = tower.encode_history(tokens, actions, times, present)
    return outputs, tower.encode_conditions(conditions, types, caches, seen)


def test_conditions_together_equal_each_alone(tower: UserTower) -> None:
    tokens, conditions, types = torch.randn(2, 5, 8), torch.randn(2, 3, 8), torch.tensor([[0, 1, 2], [3, 1, 0]])
    _, together = encode(tower, tokens, conditions, types)
    for at in range(3):
        _, alone = encode(tower, tokens, conditions[:, at : at + 1], types[:, at : at + 1])
        torch.testing.assert_close(together[:, at], alone[:, 0], atol=1e-6, rtol=0)


def test_the_block_mask_equals_one_dense_masked_sequence(tower: UserTower) -> None:
    """The same weights over one sequence [start, h1..h5, c1, c2] under the mask written out: history causal, conditions on history + self."""
    tokens, conditions, types = torch.randn(1, 5, 8), torch.randn(1, 2, 8), torch.tensor([[1, 2]])
    _, ours = encode(tower, tokens, conditions, types)
    times, present = torch.arange(5).unsqueeze(0) * 10, torch.ones(1, 5, dtype=torch.bool)
    history = tokens + tower.actions.weight[0] + tower.gaps(gap_buckets(times, present)) + tower.recency(torch.arange(4, -1, -1))
    sequence = torch.cat([tower.start.expand(1, 1, -1), history, conditions + tower.condition_types(types)], dim=1)
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    mask[7, 6] = False  # the second condition doesn't see the first
    x = tower.norm_in(sequence)
    for block in tower._blocks():
        x, _ = block.history(x, mask[None, None])
    torch.testing.assert_close(tower.head(x[:, 6:]), ours, atol=1e-5, rtol=0)


def test_a_later_event_changes_no_earlier_output(tower: UserTower) -> None:
    tokens = torch.randn(1, 5, 8)
    changed = tokens.clone()
    changed[0, 3] = torch.randn(8)  # adding a constant would do nothing: LayerNorm takes it out
    before, _ = encode(tower, tokens, torch.zeros(1, 1, 8), torch.zeros(1, 1, dtype=torch.int64))
    after, _ = encode(tower, changed, torch.zeros(1, 1, 8), torch.zeros(1, 1, dtype=torch.int64))
    torch.testing.assert_close(before[:, :4], after[:, :4])  # start token and events 0..2
    assert not torch.allclose(before[:, 4], after[:, 4])


def test_padding_in_front_changes_nothing(tower: UserTower) -> None:
    tokens, conditions, types = torch.randn(1, 3, 8), torch.randn(1, 2, 8), torch.tensor([[0, 1]])
    _, short = encode(tower, tokens, conditions, types)
    padded = torch.cat([torch.randn(1, 2, 8), tokens], dim=1)
    _, long = encode(tower, padded, conditions, types, present=torch.tensor([[False, False, True, True, True]]))
    torch.testing.assert_close(short, long, atol=1e-6, rtol=0)


def test_an_empty_history_still_gives_unit_vectors_that_the_condition_moves(tower: UserTower) -> None:
    conditions = torch.randn(1, 2, 8)
    _, vectors = encode(tower, torch.zeros(1, 4, 8), conditions, torch.tensor([[0, 1]]), present=torch.zeros(1, 4, dtype=torch.bool))
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(1, 2))
    assert not torch.allclose(vectors[0, 0], vectors[0, 1])


def test_gaps_are_powers_of_two_of_seconds_and_zero_for_the_first() -> None:
    # gaps 0, 1, 3, 1000 s → log2(gap + 1) = 0, 1, 2, 9.97 → buckets 1, 2, 3, 10
    times = torch.tensor([[7, 7, 8, 11, 1011]])
    assert gap_buckets(times, torch.ones(1, 5, dtype=torch.bool)).tolist() == [[0, 1, 2, 3, 10]]
    present = torch.tensor([[False, True, True, True, True]])
    assert gap_buckets(times, present).tolist() == [[0, 0, 2, 3, 10]]
