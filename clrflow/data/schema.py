"""The tables that a user brings, as Arrow schemas: the data contract's types. What happens to rows that break a rule is in
`validate.py`; docs/data-contract.md explains it to people.
"""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from clrflow.contracts import TIME


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """One input table: its required and optional columns."""

    name: str
    required: pa.Schema
    optional: pa.Schema = pa.schema([])
    may_be_empty: bool = False
    may_be_missing: bool = False

    @property
    def columns(self) -> pa.Schema:
        return pa.schema([*self.required, *self.optional])


EVENTS = Table(
    name="events",
    required=pa.schema([("user_id", pa.int64()), ("item_id", pa.int64()), ("timestamp", TIME), ("action", pa.string())]),
    optional=pa.schema(
        [
            ("board_id", pa.int64()),  # where the user put the item
            ("generator", pa.string()),  # which candidate generator served it, where the log knows
            ("condition_type", pa.string()),  # interest | item | board
            ("condition_id", pa.int64()),
            ("position", pa.int32()),  # rank at which it was shown
            ("event_order", pa.int64()),  # place among the events of one user at one time, where the log knows it; see EVENT_ORDER
        ]
    ),
)
ITEMS = Table(
    name="items",
    required=pa.schema(
        [
            ("item_id", pa.int64()),
            ("created_at", TIME),
            ("interests", pa.list_(pa.int64())),
            ("content_embedding", pa.list_(pa.float32())),  # one width for all rows; fixed-size lists are read as such
        ]
    ),
    optional=pa.schema([("title", pa.string())]),
)
BOARDS = Table(
    name="boards",
    required=pa.schema([("board_id", pa.int64()), ("user_id", pa.int64()), ("item_id", pa.int64()), ("added_at", TIME)]),
    optional=pa.schema([("name", pa.string())]),
    may_be_empty=True,
    may_be_missing=True,
)
USER_INTERESTS = Table(
    name="user_interests",
    required=pa.schema([("user_id", pa.int64()), ("interest_id", pa.int64()), ("followed_at", TIME)]),
    may_be_empty=True,
    may_be_missing=True,
)
INTERESTS = Table(
    name="interests",
    required=pa.schema([("interest_id", pa.int64()), ("name", pa.string())]),
    may_be_empty=True,
    may_be_missing=True,  # then the ids in items.interests are all there are, named "interest 7"
)
TABLES = (EVENTS, ITEMS, BOARDS, USER_INTERESTS, INTERESTS)

EVENT_ORDER = "event_order"
"""Breaks ties between events of one user at one time; clean events are sorted by (user_id, timestamp, event_order).

As input any number that grows in the order of what happened, or null. In clean tables it is never null: 0, 1, ... within (user_id, timestamp),
so it stays the same when files are renamed or the window moves on, and (user_id, timestamp, event_order) names one event."""

DAYS = pa.schema([("table", pa.string()), ("day", pa.date32()), ("num_rows", pa.int64()), ("fingerprint", pa.string())])
"""One row for each table but interests and each UTC day of its time (timestamp, created_at, added_at, followed_at). `fingerprint` is equal for
equal clean rows of the day in any order: whoever built something from them knows whether it still holds."""


def with_width(schema: pa.Schema, dim: int) -> pa.Schema:
    """The items schema with `content_embedding` as a list of exactly `dim` floats: how clean tables hold it."""
    return schema.set(schema.get_field_index("content_embedding"), pa.field("content_embedding", pa.list_(pa.float32(), dim)))
