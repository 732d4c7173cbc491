"""The conditional two-tower model: looked-up rows in, losses or vectors out.

`lookup` is any module that maps {table: distinct rows [n]} to {table: vectors [n, D]}: TorchRec's sharded tables in training
(training/sharding.py), plain tables on a GPU test. Freezing the tables means looking them up without autograd: weights and
optimizer state stay bit-identical and no backward collective is spent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math

import torch
from torch import Tensor, nn

from clrflow.contracts import BOARD as BOARD_CONDITION
from clrflow.contracts import CONDITION_TYPES
from clrflow.contracts import INTEREST as INTEREST_CONDITION
from clrflow.contracts import ITEM as ITEM_CONDITION
from clrflow.model.batch import Batch, ItemRows
from clrflow.model.item_tower import ItemTower
from clrflow.model.losses import sampled_softmax, weighted_mean
from clrflow.model.settings import ModelSettings
from clrflow.model.tables import BOARD, INTEREST, ITEM, semantic_table
from clrflow.model.user_tower import UserTower

MAX_SCALE = 100.0
"""Largest 1 / temperature that is learnt; beyond it float32 logits of unit vectors lose their order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossWeights:
    """How much each part of the loss counts; the unconditional targets count 1."""

    conditioned: float = 1.0
    history: float = 1.0
    history_places: int = 16
    """Places of each history, drawn anew each step, that predict their next item."""


class TwoTower(nn.Module):
    """Shapes as in Batch; D = settings.dim."""

    def __init__(
        self,
        settings: ModelSettings,
        lookup: nn.Module,
        *,
        num_levels: int,
        content_dim: int,
        num_actions: int,
        temperature: float = 0.07,
        weights: LossWeights | None = None,
    ):
        super().__init__()
        self.lookup = lookup
        self.num_levels = num_levels
        self.weights = weights or LossWeights()
        self.item_tower = ItemTower(settings, num_levels, content_dim)
        self.user_tower = UserTower(settings, num_actions, len(CONDITION_TYPES))
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / temperature)))
        self.frozen_tables = False

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss to minimise [] and its parts, detached."""
        tokens, vectors, interests, boards = self._look_up(batch)
        caches, present, outputs = self._history(batch, tokens)
        queries = self._queries(batch, tokens, interests, boards, caches, present)

        scale = self.log_scale.exp().clamp(max=MAX_SCALE)
        candidates = vectors[batch.candidates]
        with_target, query_of = torch.unique(batch.target_queries, return_inverse=True)
        losses = sampled_softmax(
            queries.flatten(0, 1)[with_target],
            query_of,
            vectors[batch.target_items],
            candidates,
            batch.log_inclusion,
            batch.user_positives[with_target // batch.query_types.shape[1]],
            scale,
        )
        conditioned = batch.query_types.flatten()[batch.target_queries] != 0
        unconditional_loss = weighted_mean(losses, batch.target_weights * ~conditioned)
        conditioned_loss = weighted_mean(losses, batch.target_weights * conditioned)
        history_loss = self._next_item_loss(batch, outputs, vectors, candidates, scale)
        total = unconditional_loss + self.weights.conditioned * conditioned_loss + self.weights.history * history_loss
        parts = {"unconditional": unconditional_loss, "conditioned": conditioned_loss, "history": history_loss}
        return total, {name: part.detach() for name, part in parts.items()}

    @torch.no_grad()
    def encode_items(self, items: ItemRows, interest_rows: Tensor) -> tuple[Tensor, Tensor]:
        """n items → tokens [n, D], unit vectors [n, D]."""
        looked_up = self.lookup({**self._item_table_rows(items), INTEREST: interest_rows, BOARD: interest_rows[:0]})
        return self._items(items, looked_up)

    @torch.no_grad()
    def encode_queries(self, batch: Batch) -> Tensor:
        """Unit vectors [B, Q, D] of all queries; padding queries hold nonsense."""
        tokens, _, interests, boards = self._look_up(batch)
        caches, present, _ = self._history(batch, tokens)
        return self._queries(batch, tokens, interests, boards, caches, present)

    def _look_up(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One lookup for histories, targets, negatives and conditions → item tokens, item vectors, interest rows, board rows."""
        wanted = {**self._item_table_rows(batch.items), INTEREST: batch.interest_rows, BOARD: batch.board_rows}
        with torch.no_grad() if self.frozen_tables else contextlib.nullcontext():
            looked_up = self.lookup(wanted)
        tokens, vectors = self._items(batch.items, looked_up)
        return tokens, vectors, looked_up[INTEREST], looked_up[BOARD]

    def _item_table_rows(self, items: ItemRows) -> dict[str, Tensor]:
        levels = {semantic_table(level + 1): items.semantic[:, level] for level in range(self.num_levels)}
        return {ITEM: items.rows, **levels}

    def _items(self, items: ItemRows, looked_up: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        semantic = torch.stack([looked_up[semantic_table(level + 1)] for level in range(self.num_levels)], dim=1)
        interests = pooled(looked_up[INTEREST], items.interests, items.has_interest)
        tokens, vectors = self.item_tower(looked_up[ITEM], items.rows > 0, semantic, interests, items.content)
        return tokens, vectors

    def _history(self, batch: Batch, tokens: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
        outputs, caches, present = self.user_tower.encode_history(tokens[batch.history], batch.actions, batch.times_s, batch.present)
        return caches, present, outputs

    def _queries(
        self, batch: Batch, tokens: Tensor, interests: Tensor, boards: Tensor, caches: list[tuple[Tensor, Tensor]], present: Tensor
    ) -> Tensor:
        condition = condition_tokens(batch, tokens, interests, boards)
        vectors: Tensor = self.user_tower.encode_conditions(condition, batch.query_types, caches, present)
        return vectors

    def _next_item_loss(self, batch: Batch, outputs: Tensor, vectors: Tensor, candidates: Tensor, scale: Tensor) -> Tensor:
        """Places of the history predict the item after them, so one pass learns from what it reads, beside the request's targets."""
        if not self.weights.history:
            return outputs.sum() * 0
        request, place = drawn_places(batch.present, self.weights.history_places)
        positives = batch.history[request, place]
        losses = sampled_softmax(
            self.user_tower.head(outputs[request, place]),  # outputs are shifted by the start token: place p has seen items before p
            torch.arange(len(place), device=place.device),
            vectors[positives],
            candidates,
            batch.log_inclusion,
            batch.user_positives[request] | (batch.candidates == positives.unsqueeze(1)),
            scale,
        )
        return weighted_mean(losses, torch.ones_like(losses))


def drawn_places(present: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """At most `count` distinct present places of each row of [B, H], drawn at random → rows [n], places [n]."""
    order = torch.rand(present.shape, device=present.device).masked_fill(~present, 2.0)
    places = order.topk(min(count, present.shape[1]), dim=1, largest=False).indices
    row, slot = present.gather(1, places).nonzero(as_tuple=True)
    return row, places[row, slot]


def pooled(rows: Tensor, places: Tensor, present: Tensor) -> Tensor:
    """Mean of rows[places] over the last axis where present: rows [n, D], places and present [..., M] → [..., D]; zero where none is."""
    weights = present.to(rows.dtype)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)
    safe = torch.where(present, places, 0)
    if rows.shape[0] == 0:
        return rows.new_zeros(*places.shape[:-1], rows.shape[1])
    return (rows[safe] * weights.unsqueeze(-1)).sum(-2)


def condition_tokens(batch: Batch, tokens: Tensor, interests: Tensor, boards: Tensor) -> Tensor:
    """What the transformer sees of each condition, without its type [B, Q, D].

    interest: its row; item: the item's own token; board: the mean of its recent items' tokens plus its row; none: nothing.
    """
    types = batch.query_types
    of_items = pooled(tokens, batch.query_items, batch.query_has_item)
    is_interest, is_board = types == CONDITION_TYPES.index(INTEREST_CONDITION), types == CONDITION_TYPES.index(BOARD_CONDITION)
    is_item = types == CONDITION_TYPES.index(ITEM_CONDITION)
    of_interest = pooled(interests, batch.query_interests.unsqueeze(-1), is_interest.unsqueeze(-1))
    of_board = pooled(boards, batch.query_boards.unsqueeze(-1), is_board.unsqueeze(-1))
    return of_interest + of_board + of_items * (is_item | is_board).unsqueeze(-1)
