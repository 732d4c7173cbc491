"""Nests rows into requests and writes the step's tables, a range of requests at a time so that memory stays bounded.

The engine sorts and cuts the rows; here they only become lists. A history is a slice of the user's run of events: see histories.slices.
"""

from __future__ import annotations

from collections.abc import Iterator

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clrflow.bootstrap.attribution import Attribution
from clrflow.bootstrap.engine import Engine, Table
from clrflow.bootstrap.generators import Generator, View
from clrflow.bootstrap.histories import Ints, slices
from clrflow.bootstrap.serve import Served
from clrflow.contracts import CANDIDATES, CONDITION, KNOWN, REQUESTS, TARGET, USER_STATES
from clrflow.progress import Progress

REQUESTS_A_RANGE = 4096
"""Requests that are nested at once; at 200 events of history about 25 MB."""
LISTED_A_RANGE = 1024
"""Held-out requests whose candidates are nested at once; at 14 lists of 100 about 1.4 million rows."""


def request_tables(
    view: View, generators: list[Generator], requests: Table, engagements: Table, found: Attribution, shown: Table
) -> Iterator[pa.Table]:
    """contracts.REQUESTS in order; `shown` has request_id, item_id, shown_at (see requests.impressions)."""
    engine, total = view.engine, view.engine.value(requests.count())
    tokens = _tokens(view, generators, found)
    details = engagements.select("row", "item_id", "action", "timestamp", "position")
    targets = found.targets.join(details, "row")
    with Progress("bootstrap: requests", total, "requests") as progress:
        for low in range(0, total, REQUESTS_A_RANGE):
            high = min(low + REQUESTS_A_RANGE, total)
            heads = engine.arrow(_between(requests, "request_id", low, high).order_by("request_id"))
            ids = heads.column("request_id").to_numpy()
            columns = {name: heads.column(name) for name in ("request_id", "user_id", "requested_at", "split")}
            columns |= _histories(view, engagements, heads)
            columns["conditions"] = _conditions(engine, found.conditions, tokens, ids)
            rows = engine.arrow(_between(targets, "request_id", low, high).order_by(["request_id", "position", "condition"]))
            columns["targets"] = _nest(rows, "request_id", ids, TARGET)
            seen = engine.arrow(_between(shown, "request_id", low, high).order_by(["request_id", "shown_at", "item_id"]))
            columns["impressions"] = _nest(seen, "request_id", ids, "item_id")
            yield pa.table(columns).select(REQUESTS.names).cast(REQUESTS)
            progress.advance(high - low)


def user_state_tables(view: View, generators: list[Generator], engagements: Table, found: Attribution) -> Iterator[pa.Table]:
    """contracts.USER_STATES, sorted by user."""
    engine = view.engine
    queries = view.queries.filter(~view.queries.is_request)
    # The end of a user's rows is where the next user's begin.
    ends = engagements.group_by("user_id").aggregate(first_row=engagements.row.max() + 1)
    queries = engine.keep("end_queries", queries.select("query_id", "user_id", "first_seq").join(ends, "user_id"))
    low, last = engine.value(queries.query_id.min()), engine.value(queries.query_id.max())
    tokens = _tokens(view, generators, found)
    known = found.conditions.filter(found.conditions.role == KNOWN)
    for start in range(low, last + 1, REQUESTS_A_RANGE):
        heads = engine.arrow(_between(queries, "query_id", start, start + REQUESTS_A_RANGE).order_by("query_id"))
        columns = {"user_id": heads.column("user_id"), **_histories(view, engagements, heads)}
        columns["conditions"] = _conditions(engine, known, tokens, heads.column("query_id").to_numpy())
        yield pa.table(columns).select(USER_STATES.names).cast(USER_STATES)


def candidate_tables(view: View, served: Served, sampled: Table) -> Iterator[pa.Table]:
    """contracts.CANDIDATES of the sampled held-out requests, by request, generator and place of the condition."""
    engine = view.engine
    order = ["request_id", "type_order", "score", "condition_id"]
    asked = served.known.filter(served.known.is_request).select(
        "generator", "type_order", "condition_type", "condition_id", "state", "period", "score", request_id="query_id"
    )
    asked = asked.semi_join(sampled, "request_id")
    asked = engine.keep("listed_conditions", asked)
    numbered = engine.arrow(sampled.order_by("request_id")).column("request_id").to_numpy()
    for low in range(0, len(numbered), LISTED_A_RANGE):
        first, last = int(numbered[low]), int(numbered[min(low + LISTED_A_RANGE, len(numbered)) - 1])
        part = _between(asked, "request_id", first, last + 1).mutate(condition_score="score").drop("score")
        rows = part.join(served.lists, ["generator", "condition_id", "state", "period"])
        sort = ["request_id", "type_order", "generator", ibis.desc("condition_score"), "condition_id", "rank"]
        rows = engine.arrow(rows.order_by(sort).select(*order[:2], "generator", "condition_type", "condition_id", "item_id", "score"))
        yield _nest_lists(rows)


def _between(table: Table, key: str, low: int, high: int) -> Table:
    return table.filter((table[key] >= low) & (table[key] < high))


def _histories(view: View, engagements: Table, heads: pa.Table) -> dict[str, pa.Array]:
    """The three history lists of queries, given the row at which each begins and how many of the user's rows precede it."""
    first_row, first_seq = heads.column("first_row").to_numpy(), heads.column("first_seq").to_numpy()
    starts = first_row - np.minimum(first_seq, view.settings.request.max_history)
    low, high = int(starts.min()), int(first_row.max())
    wanted = _between(engagements, "row", low, high).select("row", "item_id", "action", "timestamp").order_by("row")
    events = view.engine.arrow(wanted)
    offsets, places = slices(starts - low, first_row - low)
    taken = events.take(pa.array(places))
    ends = pa.array(offsets.astype(np.int32))
    return {
        f"history_{name}": pa.ListArray.from_arrays(ends, taken.column(column).combine_chunks())
        for name, column in (("items", "item_id"), ("actions", "action"), ("times", "timestamp"))
    }


def _tokens(view: View, generators: list[Generator], found: Attribution) -> Table:
    """condition_type, condition_id, state, place, item_id: what condition tokens show; kept in the engine."""
    engine = view.engine
    if "tokens" in engine.backend.list_tables():
        return engine.backend.table("tokens")
    engine.empty("tokens", {"condition_type": "string", "condition_id": "int64", "state": "int64", "place": "int64", "item_id": "int64"})
    for condition_type in dict.fromkeys(generator.condition_type for generator in every_kind(generators)):
        generator = next(one for one in every_kind(generators) if one.condition_type == condition_type)
        mine = found.conditions.filter(found.conditions.condition_type == condition_type).select("condition_id", "state").distinct()
        shown = generator.shown_items(view, mine)
        if shown is not None:
            engine.append("tokens", shown.mutate(condition_type=ibis.literal(condition_type)))
    return engine.backend.table("tokens")


def every_kind(generators: list[Generator]) -> list[Generator]:
    """The generators and, for types that none of them has, the built-in ones: a log may name conditions of a type that is switched off."""
    from clrflow.bootstrap.generators import BUILT_IN

    return [*generators, *(one() for one in BUILT_IN)]


def _conditions(engine: Engine, conditions: Table, tokens: Table, ids: Ints) -> pa.Array:
    part = _between(conditions, "query_id", int(ids[0]), int(ids[-1]) + 1)
    rows = engine.arrow(part.select("query_id", "index", "role", "condition_type", "condition_id", "score").order_by(["query_id", "index"]))
    shown = part.join(tokens, ["condition_type", "condition_id", "state"]).select("query_id", "index", "place", "item_id")
    shown = engine.arrow(shown.order_by(["query_id", "index", "place"]))
    # Both are sorted by (query, index): one number for the pair lets a search find where each condition's items begin.
    width = int(pc.max(rows.column("index")).as_py() or 0) + 1
    of_rows = (rows.column("query_id").to_numpy() - ids[0]) * width + rows.column("index").to_numpy()
    of_shown = (shown.column("query_id").to_numpy() - ids[0]) * width + shown.column("index").to_numpy()
    offsets = np.append(np.searchsorted(of_shown, of_rows), len(of_shown)).astype(np.int32)
    items = pa.ListArray.from_arrays(pa.array(offsets), _one(shown.column("item_id"), pa.int64()))
    named = pa.table(
        {
            "query_id": rows.column("query_id"), "type": rows.column("condition_type"), "id": rows.column("condition_id"), "items": items,
            "score": rows.column("score"), "role": rows.column("role"),
        }
    )  # fmt: skip
    return _nest(named, "query_id", ids, CONDITION)


def _one(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """A column as one array of a type; floats lose what float32 can't hold."""
    combined = column.combine_chunks()
    array = combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks or [pa.array([], column.type)])
    return array if array.type == kind else array.cast(kind, safe=not pa.types.is_floating(kind))


def _nest(rows: pa.Table, key: str, ids: Ints, kind: pa.DataType | str) -> pa.Array:
    """Rows sorted by key as one list an id; `kind` is a struct of columns, or the name of the one column."""
    keys = rows.column(key).to_numpy()
    offsets = np.append(np.searchsorted(keys, ids), len(keys)).astype(np.int32)
    if isinstance(kind, str):
        values = _one(rows.column(kind), pa.int64())
    else:
        fields = [kind.field(place) for place in range(kind.num_fields)]
        values = pa.StructArray.from_arrays([_one(rows.column(field.name), field.type) for field in fields], fields=fields)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _nest_lists(rows: pa.Table) -> pa.Table:
    """Sorted candidate rows as one row a list."""
    if not len(rows):
        return CANDIDATES.empty_table()
    request, condition = rows.column("request_id").to_numpy(), rows.column("condition_id").to_numpy()
    generator = rows.column("generator").combine_chunks().dictionary_encode()
    codes = (generator if isinstance(generator, pa.DictionaryArray) else generator.combine_chunks()).indices.to_numpy()
    changes = (np.diff(request) != 0) | (np.diff(condition) != 0) | (np.diff(codes) != 0)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    offsets = pa.array(np.append(starts, len(rows)).astype(np.int32))
    heads = rows.take(pa.array(starts))
    lists = {
        "items": pa.ListArray.from_arrays(offsets, _one(rows.column("item_id"), pa.int64())),
        "scores": pa.ListArray.from_arrays(offsets, _one(rows.column("score"), pa.float32())),
    }
    named = {name: heads.column(name) for name in ("request_id", "generator", "condition_type", "condition_id")}
    return pa.table({**named, **lists}).cast(CANDIDATES)
