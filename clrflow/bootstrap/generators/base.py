"""The interface of a heuristic candidate generator, and what it may look at.

A generator answers two questions at a point in time: which conditions has this user now, and which items does a condition bring. To add one,
write a class with these methods in a file of its own and put it into the registry in `__init__.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from clrflow.bootstrap.engine import Engine, Table
from clrflow.bootstrap.settings import BootstrapSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """The world as generators may see it. Ids are int64; `period` counts periods of `granularity_days` since 1970."""

    engine: Engine
    settings: BootstrapSettings
    queries: Table
    """query_id, user_id, requested_at, period, first_seq, is_request, split: each request, and each user at the end of the data."""
    recent: Table
    """query_id, user_id, period, item_id, age: the user's newest engagements before the query, age 1 the newest."""
    learnt: Table
    """user_id, item_id, seq, period: engagements of the train span. Use those of periods before a query's only."""
    popularity: Table
    """period, item_id, total: train engagements before the period."""
    items: Table
    """item_id, created_at, content_embedding."""
    item_interests: Table
    """item_id, interest_id, place, num_interests: one row for each interest of an item."""
    followed: Table
    """user_id, interest_id, followed_at."""
    entries: Table
    """board_id, user_id, item_id, added_at, entry (1-based in the board, oldest first), period, learnt (may enter a graph)."""


class Generator(Protocol):
    """Conditions and candidates from what was known before a query."""

    name: str
    """Written into targets and candidates; what a log's `generator` column would hold."""
    condition_type: str
    """One of contracts.CONDITION_TYPES."""

    def conditions(self, view: View) -> Table:
        """query_id, condition_id, state, score: what each user has at the query, the best by score.

        `state` tells apart what one condition is at different times beyond the period (a board's number of items); 0 where nothing does.
        """
        ...

    def candidates(self, view: View, wanted: Table) -> Table:
        """list_id, item_id, rank (1 is best), score for the `wanted` list_id, condition_id, state and period.

        From events of earlier periods only. Items that the user has seen may be among them.
        """
        ...

    def shown_items(self, view: View, wanted: Table) -> Table | None:
        """condition_id, state, place, item_id: the items that the condition's token shows, newest last; None: it shows none.

        `wanted` has condition_id and state.
        """
        ...
