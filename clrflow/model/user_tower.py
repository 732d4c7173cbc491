"""Conditioned User Sequence Transformer: one history pass, any number of conditions (Pinterest, "Scaling Conditional Learned
Retrieval", 2026).

The history runs once through a causal pre-norm transformer. Condition tokens are appended: each sees the whole history and itself,
never another condition, and the history never sees them. So a condition's result is exactly what it would be alone, and the
history's keys and values are computed once for all conditions of a request; no mask of size (H + Q)² is ever built.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clrflow.model.settings import ModelSettings

NUM_GAP_BUCKETS = 32
"""Powers of two of seconds since the event before: 31 is more than 34 years."""

KeyValues = tuple[Tensor, Tensor]


def gap_buckets(times_s: Tensor, present: Tensor) -> Tensor:
    """Seconds of each event [B, H] (int64) → bucket of the time since the event before it [B, H]; 0 for the first and for none."""
    gaps = torch.zeros_like(times_s)
    gaps[:, 1:] = (times_s[:, 1:] - times_s[:, :-1]).clamp(min=0)
    has_previous = torch.zeros_like(present)
    has_previous[:, 1:] = present[:, 1:] & present[:, :-1]
    buckets = torch.log2(gaps.double() + 1).floor().long() + 1
    return torch.where(has_previous, buckets.clamp(max=NUM_GAP_BUCKETS - 1), 0)


class Block(nn.Module):
    """One pre-norm transformer block that treats history tokens and condition tokens with the same weights."""

    def __init__(self, dim: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.norm_attention, self.norm_feed_forward = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.drop = nn.Dropout(dropout)

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, dim = x.shape
        q, k, v = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.num_heads, dim // self.num_heads).permute(2, 0, 3, 1, 4)
        return q, k, v

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.drop(self.out(attended.transpose(1, 2).flatten(2)))
        return x + self.drop(self.feed_forward(self.norm_feed_forward(x)))

    def history(self, x: Tensor, visible: Tensor) -> tuple[Tensor, KeyValues]:
        """x [B, H, D], visible [B, 1, H, H] bool → [B, H, D] and the keys and values that conditions read."""
        q, k, v = self._heads(x)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return self._finish(x, attended), (k, v)

    def conditions(self, x: Tensor, cache: KeyValues, present: Tensor) -> Tensor:
        """x [B, Q, D], cache of [B, heads, H, d], present [B, H] bool → [B, Q, D]."""
        q, k, v = self._heads(x)
        keys, values = cache
        scale = q.shape[-1] ** -0.5
        to_history = (q @ keys.transpose(-1, -2)) * scale
        to_history = to_history.masked_fill(~present[:, None, None, :], float("-inf"))
        to_itself = (q * k).sum(-1, keepdim=True) * scale
        weights = torch.softmax(torch.cat([to_history, to_itself], dim=-1), dim=-1)
        attended = weights[..., :-1] @ values + weights[..., -1:] * v
        return self._finish(x, attended)


class UserTower(nn.Module):
    """Shapes: B requests, H history length, Q conditions a request, D = settings.dim."""

    def __init__(self, settings: ModelSettings, num_actions: int, num_condition_types: int):
        super().__init__()
        dim = settings.dim
        self.max_history = settings.max_history
        self.actions = nn.Embedding(num_actions, dim)
        self.gaps = nn.Embedding(NUM_GAP_BUCKETS, dim)
        self.recency = nn.Embedding(settings.max_history, dim)  # 0 is the newest: the same place at training and at serving
        self.start = nn.Parameter(torch.zeros(dim))
        self.condition_types = nn.Embedding(num_condition_types, dim)
        for table in (self.actions, self.gaps, self.recency, self.condition_types):
            nn.init.normal_(table.weight, std=0.02)
        self.norm_in = nn.LayerNorm(dim)
        self.drop = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(Block(dim, settings.num_heads, settings.dropout) for _ in range(settings.num_layers))
        self.norm_out = nn.LayerNorm(dim)
        self.vector = nn.Linear(dim, dim)

    def encode_history(self, tokens: Tensor, actions: Tensor, times_s: Tensor, present: Tensor) -> tuple[Tensor, list[KeyValues], Tensor]:
        """
        tokens [B, H, D], actions [B, H] int64, times_s [B, H] int64, present [B, H] bool; newest last, padding in front
        → outputs [B, 1 + H, D], keys and values by block, present [B, 1 + H]; place 0 is a start token, so that an empty history
        has something to look at
        """
        batch, length, _ = tokens.shape
        recency = torch.arange(length - 1, -1, -1, device=tokens.device)
        x = tokens + self.actions(actions) + self.gaps(gap_buckets(times_s, present)) + self.recency(recency)
        x = torch.cat([self.start.expand(batch, 1, -1), x], dim=1)
        present = F.pad(present, (1, 0), value=True)
        x = self.drop(self.norm_in(x))
        causal = torch.ones(length + 1, length + 1, dtype=torch.bool, device=tokens.device).tril()
        visible = (causal & present[:, None, :])[:, None]
        caches = []
        for block in self._blocks():
            x, cache = block.history(x, visible)
            caches.append(cache)
        return x, caches, present

    def encode_conditions(self, tokens: Tensor, types: Tensor, caches: list[KeyValues], present: Tensor) -> Tensor:
        """tokens [B, Q, D] (zero for `none`), types [B, Q] int64 → unit vectors [B, Q, D]."""
        x = self.drop(self.norm_in(tokens + self.condition_types(types)))
        for block, cache in zip(self._blocks(), caches, strict=True):
            x = block.conditions(x, cache, present)
        return self.head(x)

    def _blocks(self) -> list[Block]:
        return cast(list[Block], list(self.blocks))

    def head(self, x: Tensor) -> Tensor:
        """Outputs [..., D] → unit vectors [..., D]."""
        return F.normalize(self.vector(self.norm_out(x)), dim=-1)
