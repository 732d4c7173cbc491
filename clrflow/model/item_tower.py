"""Item tower: id row + one row per semantic-id prefix + interests + projected content → a token and a unit vector.

The token is what a history shows of the item, the vector is what is retrieved; both come from one trunk, so whatever is learnt
about an item as a target also helps where it is read. The id row is hidden at random, and always for items outside the vocabulary,
so that the semantic path can carry cold items.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clrflow.model.settings import ModelSettings


class ItemTower(nn.Module):
    """Shapes: n items, D = settings.dim, L semantic levels, E content width."""

    def __init__(self, settings: ModelSettings, num_levels: int, content_dim: int):
        super().__init__()
        dim = settings.dim
        self.id_dropout = settings.id_dropout
        self.use_content = settings.use_content
        self.use_interests = settings.use_interests
        self.content = nn.Sequential(nn.Linear(content_dim, dim), nn.GELU(), nn.Linear(dim, dim)) if self.use_content else None
        num_parts = 1 + num_levels + int(self.use_content) + int(self.use_interests)
        self.mix = nn.Sequential(nn.Linear(num_parts * dim, 2 * dim), nn.GELU(), nn.Dropout(settings.dropout), nn.Linear(2 * dim, dim))
        self.norm = nn.LayerNorm(dim)
        self.vector = nn.Linear(dim, dim)

    def forward(
        self, id_rows: Tensor, in_vocabulary: Tensor, semantic_rows: Tensor, interests: Tensor, content: Tensor
    ) -> tuple[Tensor, Tensor]:
        """
        id_rows [n, D], in_vocabulary [n] bool, semantic_rows [n, L, D], interests [n, D] (mean of the item's rows), content [n, E]
        → tokens [n, D], unit vectors [n, D]
        """
        keep = in_vocabulary
        if self.training and self.id_dropout:
            keep = keep & (torch.rand(len(keep), device=keep.device) >= self.id_dropout)
        parts = [id_rows * keep.unsqueeze(1), *semantic_rows.unbind(1)]
        if self.use_interests:
            parts.append(interests)
        if self.content is not None:
            parts.append(self.content(content))
        stacked = torch.stack(parts, dim=1)
        tokens = self.norm(stacked.sum(1) + self.mix(stacked.flatten(1)))
        return tokens, F.normalize(self.vector(tokens), dim=-1)
