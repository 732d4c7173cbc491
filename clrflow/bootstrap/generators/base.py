"""The interface of a heuristic candidate generator, what it may look at, and the registry.

A generator answers two questions at a point in time: which conditions has this user now, and which items does a condition bring. To add one,
write a class with these methods under `@register` in a module of its own, and either put that module into this package or name it in
`bootstrap.generator_modules`; nothing else changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol, TypeVar

from clrflow.bootstrap.engine import Engine
from clrflow.bootstrap.expressions import Table
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.contracts import CONDITION_TYPES
from clrflow.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """The world as generators may see it. Ids are int64; `period` counts periods of `granularity_days` since 1970."""

    engine: Engine
    settings: BootstrapSettings
    queries: Table
    """query_id, user_id, requested_at, period, day, first_seq, is_request, split: requests, or each user at the end of the data."""
    recent: Table
    """query_id, user_id, period, item_id, age: the user's newest engagements before the query, age 1 the newest."""
    history: Table
    """user_id, seq, item_id, action, timestamp, day, ...: all engagements."""
    learnt: Table
    """user_id, item_id, seq, period: engagements of the train span. Use those that `seen` lets through only."""
    popularity: Table
    """period, item_id, total: train engagements before the period, no older than the lookback."""
    items: Table
    """item_id, created_at, content_embedding."""
    items_uri: str
    """Where the items lie, sorted by item_id: for what needs their embeddings outside the engine."""
    item_interests: Table
    """item_id, interest_id, place, num_interests: one row for each interest of an item."""
    followed: Table
    """user_id, interest_id, followed_at."""
    entries: Table
    """board_id, user_id, item_id, added_at, entry (1-based in the board, oldest first), period, learnt (may enter a graph)."""
    lookback: int | None
    """Periods that count before a query's; None: all."""
    _kept: set[str] = dataclasses.field(default_factory=set, init=False, compare=False)

    def once(self, name: str, build: Callable[[], Table]) -> Table:
        """The kept table of that name, computed when this view asks for it the first time. What all views share is `engine.once`."""
        if name not in self._kept:
            self.engine.keep(name, build())
            self._kept.add(name)
        return self.engine.table(name)


class Generator(Protocol):
    """Conditions and candidates from what was known before a query. It is made without arguments."""

    name: str
    """Written into targets and candidates; what a log's `generator` column would hold."""
    condition_type: str
    """One of contracts.CONDITION_TYPES but `none`."""

    def enabled(self, settings: BootstrapSettings) -> bool:
        """Whether the settings ask for it; options of a team's own generator stand in `settings.generator_options[name]`."""
        ...

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

    def holding(self, view: View, wanted: Table, engaged: Table) -> Table | None:
        """list_id of the wanted lists that may hold one of their `engaged` items; None: no cheap way to tell.

        `wanted` is as in `candidates`; `engaged` has list_id and item_id. Most lists of training requests hold nothing that was engaged, and
        those that are ruled out here aren't made.
        """
        ...

    def shown_items(self, view: View, wanted: Table) -> Table | None:
        """condition_id, state, place, item_id: the items that the condition's token shows, newest last; None: it shows none.

        `wanted` has condition_id and state.
        """
        ...


REGISTRY: dict[str, type[Generator]] = {}

Class = TypeVar("Class", bound=type[Generator])


def register(generator: Class) -> Class:
    """Make a generator known under its name; ConfigError when another one has that name, or when its condition type is unknown."""
    taken = REGISTRY.get(generator.name)
    where = f"{generator.__module__}.{generator.__qualname__}"
    if taken is not None and f"{taken.__module__}.{taken.__qualname__}" != where:
        raise ConfigError(
            f"two candidate generators are named {generator.name!r}: {taken.__module__}.{taken.__qualname__} and {where}; rename one."
        )
    if generator.condition_type not in CONDITION_TYPES[1:]:
        raise ConfigError(
            f"{where}.condition_type={generator.condition_type!r} is no condition type; the model knows {', '.join(CONDITION_TYPES[1:])}."
        )
    REGISTRY[generator.name] = generator
    return generator
