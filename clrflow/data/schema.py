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
"""Column that validate_data adds to events: the row's place in the input (files by name, rows in file order). It breaks ties between
events of one user at one time; a cleaned events table is sorted by (user_id, timestamp, event_order)."""


def with_width(schema: pa.Schema, dim: int) -> pa.Schema:
    """The items schema with `content_embedding` as a list of exactly `dim` floats: how clean tables hold it."""
    return schema.set(schema.get_field_index("content_embedding"), pa.field("content_embedding", pa.list_(pa.float32(), dim)))
