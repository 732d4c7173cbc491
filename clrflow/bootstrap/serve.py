"""Asks the generators: known conditions of all queries, and which candidates held what was engaged.

Candidate lists exist for a chunk of (condition, period) pairs at a time. Of a chunk stay the hits, engagements that a list held, and the lists
of held-out requests. Training requests share lists through the period and leave nothing else behind.
"""

from __future__ import annotations

import dataclasses

import ibis

from clrflow.bootstrap.engine import Engine, Table, place_in
from clrflow.bootstrap.generators import Generator, View
from clrflow.contracts import CONDITION_TYPES
from clrflow.progress import Progress, say

LISTS_A_CHUNK = 50_000
"""Candidate lists that exist at once; at 100 candidates a list about 5 million rows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """What the generators answered; kept in the engine."""

    known: Table
    """query_id, generator, type_order, condition_type, condition_id, state, score, period, split, is_request."""
    hits: Table
    """row, generator, condition_type, condition_id, rank: engagements that a known condition's candidates held."""
    lists: Table
    """generator, condition_id, state, period, item_id, rank, score: candidate lists that held-out requests ask for."""
    num_lists: dict[str, int]
    """Distinct candidate lists by generator."""


def ask_generators(view: View, generators: list[Generator], engagements: Table, sampled: Table) -> Served:
    """`sampled` has the request_id of held-out requests whose candidate lists are kept."""
    engine = view.engine
    engine.empty(
        "known",
        {
            "query_id": "int64", "generator": "string", "type_order": "int64", "condition_type": "string", "condition_id": "int64",
            "state": "int64", "score": "float64", "period": "int64", "split": "string", "is_request": "boolean",
        },
    )  # fmt: skip
    engine.empty("hits", {"row": "int64", "generator": "string", "condition_type": "string", "condition_id": "int64", "rank": "int64"})
    engine.empty(
        "lists",
        {
            "generator": "string", "condition_id": "int64", "state": "int64", "period": "int64", "item_id": "int64", "rank": "int64",
            "score": "float64",
        },
    )  # fmt: skip
    num_lists = {}
    for generator in generators:
        conditions = generator.conditions(view).join(view.queries.select("query_id", "period", "split", "is_request"), "query_id")
        conditions = conditions.mutate(
            generator=ibis.literal(generator.name),
            condition_type=ibis.literal(generator.condition_type),
            type_order=ibis.literal(CONDITION_TYPES.index(generator.condition_type), "int64"),
        )
        conditions = engine.keep(f"conditions_{generator.name}", conditions)
        engine.append("known", conditions)
        num_lists[generator.name] = _serve(view, generator, conditions, engagements, sampled)
        say(f"bootstrap: {generator.name}: {engine.value(conditions.count()):,} conditions, {num_lists[generator.name]:,} candidate lists")
    backend = engine.backend
    return Served(known=backend.table("known"), hits=backend.table("hits"), lists=backend.table("lists"), num_lists=num_lists)


def _serve(view: View, generator: Generator, conditions: Table, engagements: Table, sampled: Table) -> int:
    engine, keys = view.engine, ["condition_id", "state", "period"]
    asked = conditions.filter(conditions.is_request).select(*keys, request_id="query_id")
    held_out = asked.semi_join(sampled, "request_id").select(*keys).distinct().mutate(held_out=ibis.literal(True))
    wanted = asked.select(*keys).distinct().left_join(held_out, keys)
    wanted = wanted.select(*keys, held_out=wanted.held_out.fill_null(False))
    # Lists of one period share its statistics, so a chunk is a run of periods.
    wanted = engine.keep("wanted", wanted.mutate(list_id=place_in(["period", "condition_id", "state"])))
    asked = engine.keep("asked", asked.join(wanted, keys).select("request_id", "condition_id", "list_id"))
    total = engine.value(wanted.count())
    with Progress(f"bootstrap: {generator.name} candidates", total, "lists") as progress:
        for chunk in range(-(-total // LISTS_A_CHUNK)):
            low, high = chunk * LISTS_A_CHUNK, (chunk + 1) * LISTS_A_CHUNK
            part = engine.keep("wanted_now", wanted.filter((wanted.list_id >= low) & (wanted.list_id < high)))
            listed = engine.keep("lists_now", generator.candidates(view, part))
            hits = asked.filter((asked.list_id >= low) & (asked.list_id < high))
            hits = hits.join(engagements.select("row", "request_id", "item_id"), "request_id")
            hits = hits.join(listed.select("list_id", "item_id", "rank"), ["list_id", "item_id"])
            names = {"generator": ibis.literal(generator.name), "condition_type": ibis.literal(generator.condition_type)}
            engine.append("hits", hits.select("row", "condition_id", "rank", **names))
            kept = listed.join(part.filter(part.held_out).select("list_id", *keys), "list_id")
            engine.append("lists", kept.mutate(generator=names["generator"]))
            progress.advance(min(high, total) - low)
    return int(total)


def sample_held_out(engine: Engine, requests: Table, limit: int) -> Table:
    """request_id of at most `limit` held-out requests, evenly spread over the users."""
    held_out = requests.filter(requests.split != "train").select("request_id")
    total = engine.value(held_out.count())
    if total <= limit:
        return engine.keep("sampled_requests", held_out)
    numbered = held_out.mutate(number=place_in("request_id"))
    spread = ((numbered.number + 1) * limit // total).cast("int64") > (numbered.number * limit // total).cast("int64")
    return engine.keep("sampled_requests", numbered.filter(spread).select("request_id"))
