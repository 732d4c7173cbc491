"""Settings of the input tables: where they are, what actions mean, what happens to rows that break a rule, what counts as drift."""

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
ClearPolicy = Literal["reject", "drop", "clear"]
"""`clear` keeps the row without the part that is wrong."""
ColumnPolicy = Literal["ignore", "reject"]


class DriftSettings(Settings):
    """How far data may move from those that the published version was trained from. null switches a check off; none is made where nothing is
    published."""

    enabled: bool = True
    """False makes no check, e.g. for the one run that brings a change that is meant; once its version is published, it is the reference."""
    policy: Literal["reject", "warn"] = "reject"
    """reject: data that moved too far fail the run. warn: they are used, and log, report and metrics say what moved."""
    max_action_shift: float | None = pydantic.Field(default=0.1, ge=0, le=1)
    """Share of the events that may have changed their action: half the sum over actions of |share now - share then|."""
    max_action_ratio: float | None = pydantic.Field(default=3.0, gt=1)
    """Factor by which the share of one action may fall or rise, so that a rare one doesn't vanish unseen; for actions with `min_events` then."""
    max_logged_shift: float | None = pydantic.Field(default=0.1, ge=0, le=1)
    """By how much the share of engagements whose condition is logged may change."""
    max_condition_shift: float | None = pydantic.Field(default=0.15, ge=0, le=1)
    """As max_action_shift, for the condition types of engagements whose condition is logged."""
    min_user_overlap: float | None = pydantic.Field(default=0.2, ge=0, le=1)
    """Share of the users then who must be there now. People come and go: with a 20-day window and a run a day nearly all stay."""
    min_item_overlap: float | None = pydantic.Field(default=0.5, ge=0, le=1)
    """Share of the items then that must be there now."""
    max_day_drop: float | None = pydantic.Field(default=0.4, ge=0, le=1)
    """By which share a whole day may have fewer events than the same day had then, or than such weekdays and all days had (the lesser)."""
    max_day_rise: float | None = pydantic.Field(default=2.0, ge=0)
    """As max_day_drop for more events, against the greater: 2 allows three times as many."""
    max_norm_change: float | None = pydantic.Field(default=0.2, ge=0)
    """Relative change that the 5 %, 50 % and 95 % quantiles of the embeddings' norms may have."""
    same_embedding_dim: bool = True
    """Content embeddings must have the width that they had then."""
    min_events: int = pydantic.Field(default=1000, ge=1)
    """Fewer events than this, then or now, are too few to tell drift from chance: shares, overlaps and days below it aren't judged."""


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
    """Only events of the newest so many UTC days are used, the newest event's day being the first; null: all of them."""
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
    embedding_width: Policy = "reject"
    """Items whose content embedding has another width than most items'."""
    duplicate_id: Policy = "reject"
    """Further rows of one item or one interest; drop keeps the item that was created last, and the interest whose name comes first."""
    duplicate_row: Policy = "drop"
    """Further events of one user, item, time and action; an item on a board twice, an interest followed twice. The earliest row stays, and of
    several the first by content, wherever it stands in the files."""
    shared_board: Policy = "reject"
    """Rows of a board that has several users."""
    unknown_interest: ClearPolicy = "reject"
    """Items and followed interests whose interest is not in `interests`; clear takes the id out of the item's list and drops what is followed."""
    bad_condition: ClearPolicy = "reject"
    """Events whose logged condition has an unknown type, or a type without an id, or an id without a type; clear keeps them as not logged."""
    unknown_condition: ClearPolicy = "clear"
    """Events whose logged condition is an item or an interest that the clean tables lack; clear keeps them as not logged."""
    extra_columns: ColumnPolicy = "ignore"
    """Columns that the contract doesn't know; the report lists those that were ignored."""
    partial_columns: ColumnPolicy = "ignore"
    """Optional columns that some files of a table have and others lack; ignored, they are null where they lack, and the report lists them."""
    max_dropped_share: float = pydantic.Field(default=0.1, ge=0, le=1)
    """A table that loses more than this share of its rows fails the run."""
    drift: DriftSettings = DriftSettings()
    """How far data may move from those that the published version was trained from."""
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
