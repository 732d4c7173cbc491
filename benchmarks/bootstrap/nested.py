"""Nests flat rows into the step's four tables and writes them: what the peers share, as lists are Arrow's matter and not a frame's.

A peer hands over sorted rows. Requests are numbered by `query`, their place in the written table from 0; the users' last states follow, in the
order of user_id. Next: by_pandas/ and by_polars/.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from clrflow import storage
from clrflow.bootstrap.nesting import one_array
from clrflow.contracts import CANDIDATES, CONDITION, ITEM_STATISTICS, REQUESTS, TARGET, USER_STATES
from clrflow.data.tables import write_table
from clrflow.manifest import Output

QUERIES_A_RANGE = 4096
"""Requests that are nested at once."""
ROWS_PER_GROUP = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flat:
    """Rows of the step's tables before they are nested; texts may be dictionaries, times whole microseconds."""

    requests: pa.Table
    """request_id, user_id, requested_at, split, first_row (its first engagement's row in `events`), first_seq (rows of the user before it)."""
    users: pa.Table
    """user_id, first_row, first_seq: one past the user's last engagement."""
    events: pa.Table
    """item_id, action, timestamp of all engagements in the users' order."""
    conditions: pa.Table
    """query, type, id, score, role, sorted by query and place in it."""
    shown: pa.Table
    """place (row of `conditions`), item_id: what a condition's token shows, sorted by place and age, newest last."""
    targets: pa.Table
    """query and the fields of a target, sorted by query, position and condition."""
    impressions: pa.Table
    """query, item_id, sorted by query, first time and item."""
    asked: pa.Table
    """request_id, generator, condition_type, condition_id, list: what held-out requests asked for, in the written order."""
    lists: pa.Table
    """list, item_id, score, sorted by list and rank."""
    statistics: pa.Table
    """contracts.ITEM_STATISTICS, sorted by item."""


def write(flat: Flat, folder: str, max_history: int) -> dict[str, Output]:
    """Write requests, candidates, item_statistics and user_states below `folder`."""

    def place(name: str) -> str:
        return storage.join(folder, name)

    return {
        "requests": write_table(
            place("requests"), _requests(flat, max_history), REQUESTS, rows_per_group=ROWS_PER_GROUP, rows_per_file=16 * ROWS_PER_GROUP
        ),
        "candidates": write_table(place("candidates"), _candidates(flat), CANDIDATES, rows_per_group=4 * ROWS_PER_GROUP),
        "item_statistics": write_table(place("item_statistics"), _typed(flat.statistics, ITEM_STATISTICS), ITEM_STATISTICS),
        "user_states": write_table(place("user_states"), _user_states(flat, max_history), USER_STATES, rows_per_group=ROWS_PER_GROUP),
    }


def _requests(flat: Flat, max_history: int) -> Iterator[pa.Table]:
    keys = {name: getattr(flat, name).column("query").to_numpy() for name in ("conditions", "targets", "impressions")}
    for low in range(0, len(flat.requests), QUERIES_A_RANGE):
        heads = flat.requests.slice(low, QUERIES_A_RANGE)
        high = low + len(heads)
        columns: dict[str, Any] = {name: heads.column(name) for name in ("request_id", "user_id", "requested_at", "split")}
        columns |= _histories(flat, heads, max_history)
        columns["conditions"] = _conditions(flat, keys["conditions"], low, high)
        columns["targets"] = _nest(flat.targets, keys["targets"], low, high, TARGET)
        columns["impressions"] = _nest(flat.impressions, keys["impressions"], low, high, "item_id")
        yield _typed(pa.table(columns), REQUESTS)


def _user_states(flat: Flat, max_history: int) -> Iterator[pa.Table]:
    keys = flat.conditions.column("query").to_numpy()
    for low in range(0, len(flat.users), QUERIES_A_RANGE):
        heads = flat.users.slice(low, QUERIES_A_RANGE)
        first = len(flat.requests) + low
        columns = {"user_id": heads.column("user_id"), **_histories(flat, heads, max_history)}
        columns["conditions"] = _conditions(flat, keys, first, first + len(heads))
        yield _typed(pa.table(columns), USER_STATES)


def _candidates(flat: Flat) -> Iterator[pa.Table]:
    """Each list is nested once and taken as often as it is asked for."""
    keys = flat.lists.column("list").to_numpy()
    numbers = np.unique(keys)
    offsets = pa.array(np.append(np.searchsorted(keys, numbers), len(keys)).astype(np.int32))
    items = pa.ListArray.from_arrays(offsets, one_array(flat.lists.column("item_id"), pa.int64()))
    scores = pa.ListArray.from_arrays(offsets, one_array(flat.lists.column("score"), pa.float32()))
    asked = flat.asked.filter(pa.array(np.isin(flat.asked.column("list").to_numpy(), numbers)))
    for low in range(0, len(asked), QUERIES_A_RANGE):
        part = asked.slice(low, QUERIES_A_RANGE)
        wanted = pa.array(np.searchsorted(numbers, part.column("list").to_numpy()))
        named = {name: part.column(name) for name in ("request_id", "generator", "condition_type", "condition_id")}
        yield _typed(pa.table({**named, "items": items.take(wanted), "scores": scores.take(wanted)}), CANDIDATES)


def _histories(flat: Flat, heads: pa.Table, max_history: int) -> dict[str, pa.Array]:
    ends, before = heads.column("first_row").to_numpy(), heads.column("first_seq").to_numpy()
    lengths = np.minimum(before, max_history)
    offsets = np.append(0, np.cumsum(lengths))
    rows = pa.array(np.arange(offsets[-1]) + np.repeat(ends - lengths - offsets[:-1], lengths))
    taken = flat.events.take(rows)
    columns = {"items": ("item_id", REQUESTS), "actions": ("action", REQUESTS), "times": ("timestamp", REQUESTS)}
    return {
        f"history_{name}": pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)), one_array(taken.column(column), schema.field(f"history_{name}").type.value_type)
        )
        for name, (column, schema) in columns.items()
    }


def _conditions(flat: Flat, keys: np.ndarray, low: int, high: int) -> pa.Array:
    first, last = np.searchsorted(keys, [low, high])
    rows = flat.conditions.slice(first, last - first)
    place = flat.shown.column("place").to_numpy()
    bounds = np.searchsorted(place, np.arange(first, last + 1))
    values = one_array(flat.shown.column("item_id").slice(bounds[0], bounds[-1] - bounds[0]), pa.int64())
    items = pa.ListArray.from_arrays(pa.array((bounds - bounds[0]).astype(np.int32)), values)
    return _nest(rows.append_column("items", items), keys[first:last], low, high, CONDITION)


def _nest(rows: pa.Table, keys: np.ndarray, low: int, high: int, kind: pa.DataType | str) -> pa.Array:
    """The rows of queries low, ..., high - 1 as one list each; `kind` is a struct of columns or the name of the one column."""
    bounds = np.searchsorted(keys, np.arange(low, high + 1))
    part = rows.slice(bounds[0], bounds[-1] - bounds[0])
    if isinstance(kind, str):
        values = one_array(part.column(kind), pa.int64())
    else:
        fields = [kind.field(place) for place in range(kind.num_fields)]
        values = pa.StructArray.from_arrays([one_array(part.column(field.name), field.type) for field in fields], fields=fields)
    return pa.ListArray.from_arrays(pa.array((bounds - bounds[0]).astype(np.int32)), values)


def _typed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.table([one_array(table.column(field.name), field.type) for field in schema], schema=schema)
