"""Settings of the input tables: where they are, what actions mean, what happens to rows that break a rule."""

from __future__ import annotations

from typing import Literal

import pydantic

from clrflow.settings import Settings


class Action(Settings):
    """What one value of `events.action` means."""

    name: str
    """The value in the table."""
    weight: float = pydantic.Field(default=1.0, gt=0)
    """Weight of such a target in the loss; no effect when not positive."""
    positive: bool = True
    """True: an engagement, part of histories and targets. False: shown and not wanted (impression, hide)."""


Policy = Literal["reject", "drop"]


class DataSettings(Settings):
    """The user's tables (data contract: docs/data-contract.md)."""

    tables: str = ""
    """URI of the folder that holds events, items, boards, user_interests and interests, each as `NAME.parquet` or `NAME/`."""
    actions: tuple[Action, ...] = (
        Action(name="click", weight=1.0),
        Action(name="save", weight=2.0),
        Action(name="impression", positive=False),
    )
    """All values that `events.action` may have; any other value breaks the rule `unknown_action`."""
    window_days: int | None = pydantic.Field(default=20, ge=1)
    """Only events of the last so many days before the newest event are used; null: all of them."""
    now: str = ""
    """ISO time beyond which an event counts as being in the future; "" is the clock of the machine."""
    unknown_action: Policy = "reject"
    """Rows whose action is not in `actions`."""
    unknown_item: Policy = "drop"
    """Events and board rows whose item is not in `items`."""
    null_id: Policy = "reject"
    """Rows with a null user_id, item_id or timestamp."""
    future_event: Policy = "reject"
    """Events after `now`."""
    bad_embedding: Policy = "reject"
    """Items whose content embedding is null, holds a NaN or is all zero."""
    max_dropped_share: float = pydantic.Field(default=0.1, ge=0, le=1)
    """A table that loses more than this share of its rows fails the run."""
    memory_limit: str = "2GB"
    """What DuckDB may hold while the tables are checked; beyond it spills to the temporary folder (TMPDIR)."""

    @pydantic.model_validator(mode="after")
    def _actions_are_usable(self) -> DataSettings:
        names = [action.name for action in self.actions]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"data.actions names {', '.join(twice)} more than once; keep one entry each")
        if not any(action.positive for action in self.actions):
            raise ValueError(f"data.actions={names} holds no positive action, so nothing could be learnt; set positive: true for one")
        return self
