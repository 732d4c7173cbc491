"""A step's requests as tensors: every row that the step needs is named once, everything else points at it.

`items` are the distinct items of the batch (histories, conditions, targets, negatives), so an id travels once to its shard and the item
tower runs once an item; the same holds for interests and boards.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class ItemRows:
    """What the item tower reads of n distinct items: table rows and content."""

    rows: Tensor
    """[n] int64: row of the item table; 0 is out of vocabulary."""
    semantic: Tensor
    """[n, L] int64: rows of the prefix tables."""
    interests: Tensor
    """[n, M] int64: places in the batch's `interest_rows`; no effect where `has_interest` is false."""
    has_interest: Tensor
    """[n, M] bool."""
    content: Tensor
    """[n, E] float32."""

    def to(self, device: torch.device) -> ItemRows:
        return _moved(self, device)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """B requests, H history tokens, Q queries a request, P items a condition token, n distinct items."""

    items: ItemRows
    interest_rows: Tensor
    """[I] int64: distinct rows of the interest table."""
    board_rows: Tensor
    """[J] int64: distinct rows of the board table."""

    history: Tensor
    """[B, H] int64: places among `items`, newest last, padding in front."""
    actions: Tensor
    """[B, H] int64: place of the action in the config's list."""
    times_s: Tensor
    """[B, H] int64: seconds since 1970."""
    present: Tensor
    """[B, H] bool."""

    query_types: Tensor
    """[B, Q] int64: place in CONDITION_TYPES; query 0 is always the unconditional one."""
    query_present: Tensor
    """[B, Q] bool."""
    query_interests: Tensor
    """[B, Q] int64: place among `interest_rows`, for interest conditions."""
    query_boards: Tensor
    """[B, Q] int64: place among `board_rows`, for board conditions."""
    query_items: Tensor
    """[B, Q, P] int64: places among `items`, for item and board conditions."""
    query_has_item: Tensor
    """[B, Q, P] bool."""

    target_queries: Tensor
    """[T] int64: place of the query in [B * Q]."""
    target_items: Tensor
    """[T] int64: places among `items`."""
    target_weights: Tensor
    """[T] float32."""
    candidates: Tensor
    """[C] int64: distinct places among `items`: targets and uniform draws."""
    log_inclusion: Tensor
    """[C] float32: losses.log_inclusion of the candidates."""
    user_positives: Tensor
    """[B, C] bool: candidates that are targets of the request's user in this batch, in whichever request."""

    def to(self, device: torch.device) -> Batch:
        return dataclasses.replace(_moved(self, device), items=self.items.to(device))


Rows = TypeVar("Rows", ItemRows, Batch)


def _moved(rows: Rows, device: torch.device) -> Rows:
    """A copy whose tensors are on the device; the same tensors where they are there already."""
    values = {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}
    moved: dict[str, Any] = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
    return dataclasses.replace(rows, **moved)
