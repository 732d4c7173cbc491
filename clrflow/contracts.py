"""What steps hand each other, as Arrow schemas: the whole way of an event into the index in one file.

Ids are int64 from end to end and never pass through floats; times are UTC microseconds. The tables that a user brings are in
`data/schema.py`; these are the ones made on the way.
"""

from __future__ import annotations

import pyarrow as pa

TIME = pa.timestamp("us", tz="UTC")

NONE, INTEREST, ITEM, BOARD = "none", "interest", "item", "board"
CONDITION_TYPES = (NONE, INTEREST, ITEM, BOARD)
"""`none` is the unconditional query; the order is the model's row in its table of condition types."""

TRAIN, VALIDATION, TEST = "train", "validation", "test"
SPLITS = (TRAIN, VALIDATION, TEST)

KNOWN, FALLBACK, ORACLE = "known", "fallback", "oracle"
"""Roles of a condition in a request: the user had it before the request; it was drawn from a target's own interests for training
because no generator explains the engagement; it was drawn from a held-out target's own interests and shows only how well a
condition steers (never a fair comparison)."""

LOGGED, ATTRIBUTED, UNCONDITIONAL = "logged", "attributed", "unconditional"
"""Sources of a target's condition, beside FALLBACK and ORACLE: the log named it; a generator's candidates held the item; the
unconditional example that every engagement also gives."""

CONDITION = pa.struct(
    [
        ("type", pa.string()),
        ("id", pa.int64()),
        ("items", pa.list_(pa.int64())),  # what the token shows: a board's recent items, newest last; the item itself; [] for an interest
        ("score", pa.float32()),  # the generator's own strength; known conditions are sorted by it within their type, best first
        ("role", pa.string()),  # KNOWN | FALLBACK | ORACLE
    ]
)
TARGET = pa.struct(
    [
        ("item_id", pa.int64()),
        ("action", pa.string()),
        ("timestamp", TIME),
        ("position", pa.int32()),  # 0-based order of the engagement in its request; rows of one engagement share it
        ("condition", pa.int32()),  # index into `conditions`; -1 is the unconditional query
        ("weight", pa.float32()),  # weights of one engagement's conditioned rows sum to its action's weight (fallback: times its factor)
        ("generator", pa.string()),  # "" where none is known
        ("source", pa.string()),  # LOGGED | ATTRIBUTED | FALLBACK | ORACLE | UNCONDITIONAL
    ]
)
REQUESTS = pa.schema(
    [
        ("request_id", pa.int64()),  # (days since 1970) * 2^32 + place in the day: unique, rising in the table's order, below 2^53
        ("user_id", pa.int64()),
        ("requested_at", TIME),  # the first engagement's time
        ("split", pa.string()),  # TRAIN | VALIDATION | TEST
        # Positive actions strictly before the request in the user's order (time, then event_order), oldest first, the newest
        # `bootstrap.request.max_history` of them. Three lists of one length.
        ("history_items", pa.list_(pa.int64())),
        ("history_actions", pa.list_(pa.string())),
        ("history_times", pa.list_(TIME)),
        ("conditions", pa.list_(CONDITION)),
        ("targets", pa.list_(TARGET)),
        ("impressions", pa.list_(pa.int64())),  # shown in the request and not engaged
    ]
)
"""One row a request, in a folder a day (`day=2026-02-01/`, UTC, of the first engagement), sorted by day, user and time.
bootstrap → train, evaluate."""

CANDIDATES = pa.schema(
    [
        ("request_id", pa.int64()),
        ("generator", pa.string()),
        ("condition_type", pa.string()),
        ("condition_id", pa.int64()),
        ("items", pa.list_(pa.int64())),  # best first; seen items are still in it
        ("scores", pa.list_(pa.float32())),
    ]
)
"""What each heuristic generator would have served to the held-out requests. bootstrap → evaluate."""

ITEM_STATISTICS = pa.schema(
    [
        ("item_id", pa.int64()),
        ("num_engagements", pa.int64()),  # positive events of the train span only; items with none are in the table too
        ("first_engaged_at", TIME),  # null where there is none
    ]
)
"""bootstrap → train (vocabulary, logQ), evaluate (popularity, cold items)."""

USER_STATES = pa.schema(
    [
        ("user_id", pa.int64()),
        ("history_items", pa.list_(pa.int64())),
        ("history_actions", pa.list_(pa.string())),
        ("history_times", pa.list_(TIME)),
        ("conditions", pa.list_(CONDITION)),  # those the user has after the last event; all KNOWN
    ]
)
"""Each user as of the end of the data: what a server starts from. bootstrap → export_index."""


SERVING_FORMAT_VERSION = 1
"""Of the folder that train writes for servers (training/serving_export.py) and serving/tables.py reads."""


def codes_schema(num_levels: int) -> pa.Schema:
    """Semantic ids: one row an item, sorted by item_id. semantic_ids → train."""
    return pa.schema([("item_id", pa.int64()), ("codes", pa.list_(pa.int32(), num_levels))])


def item_vectors_schema(dim: int) -> pa.Schema:
    """Unit vectors of all items, sorted by item_id. train → evaluate, export_index."""
    return pa.schema([("item_id", pa.int64()), ("vector", pa.list_(pa.float32(), dim))])


def query_vectors_schema(dim: int) -> pa.Schema:
    """Unit vectors of the held-out requests, one for the unconditional query (-1) and one for each of `conditions`; train → evaluate."""
    return pa.schema([("request_id", pa.int64()), ("condition", pa.int32()), ("vector", pa.list_(pa.float32(), dim))])
