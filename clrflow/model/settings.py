"""Sizes of the towers and what they read."""

from __future__ import annotations

import pydantic

from clrflow.settings import Settings


class ModelSettings(Settings):
    """Item tower and Conditioned User Sequence Transformer."""

    dim: int = pydantic.Field(default=64, ge=4)
    """Width of every table, of the transformer and of the final vectors; a multiple of 4 (FBGEMM) and of num_heads."""
    num_layers: int = pydantic.Field(default=2, ge=1)
    """Pre-norm transformer blocks of the user tower."""
    num_heads: int = pydantic.Field(default=2, ge=1)
    """Attention heads a block."""
    max_history: int = pydantic.Field(default=100, ge=1)
    """Newest history tokens that the user tower reads."""
    dropout: float = pydantic.Field(default=0.2, ge=0, lt=1)
    """Of attention output, feed-forward and input tokens."""
    id_dropout: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Share of items a step whose id embedding is hidden, so that the semantic path carries cold items."""
    semantic_rows: int = pydantic.Field(default=100_000, ge=1)
    """Rows of a semantic-id prefix table at most; longer prefixes are hashed into it."""
    board_rows: int = pydantic.Field(default=100_000, ge=1)
    """Rows of the board table at most; board ids are hashed into it."""
    use_content: bool = True
    """Item tower reads the projected content embedding."""
    use_interests: bool = True
    """Item tower reads the pooled rows of the item's interests, from the table that condition tokens use too."""

    @pydantic.model_validator(mode="after")
    def _dim_fits(self) -> ModelSettings:
        if self.dim % 4:
            raise ValueError(f"model.dim={self.dim} is not a multiple of 4, which FBGEMM's tables need; use {self.dim // 4 * 4 + 4}")
        if self.dim % self.num_heads:
            raise ValueError(f"model.num_heads={self.num_heads} does not divide model.dim={self.dim}; change one of them")
        return self
