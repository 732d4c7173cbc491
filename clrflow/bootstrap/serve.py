"""Asks the generators: known conditions of all queries, and which candidates held what was engaged.

Candidate lists exist for a chunk of (condition, period) pairs at a time. Of a chunk stay the hits, engagements that a list held, and the lists
of held-out requests. Training requests share lists through the period and leave nothing else behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import ibis

from clrflow.bootstrap.engine import Engine
from clrflow.bootstrap.expressions import Table, between, place_in
from clrflow.bootstrap.generators import Generator, View
from clrflow.contracts import CONDITION_TYPES
from clrflow.progress import Progress, say

LIST_BITS = 40
"""Lists of a generator are numbered below 2^40."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """What the generators answered; kept in the engine."""

    known: Table
    """query_id, generator, type_order, condition_type, condition_id, state, score, period, split, is_request."""
    hits: Table
    """row, generator, condition_type, condition_id, rank: engagements that a known condition's candidates held."""
    lists: Table
    """list_no, item_id, rank, score: candidate lists that held-out requests ask for."""
    listed: Table
    """generator, condition_id, state, period, list_no: which list is whose."""


def ask_conditions(view: View, generators: Sequence[Generator]) -> Table:
    """The conditions that each query of the view has: see Served.known."""
    engine = view.engine
    engine.empty(
        "known",
        {
            "query_id": "int64", "generator": "string", "type_order": "int64", "condition_type": "string", "condition_id": "int64",
            "state": "int64", "score": "float64", "period": "int64", "split": "string", "is_request": "boolean",
        },
    )  # fmt: skip
    for generator in generators:
        conditions = generator.conditions(view).join(view.queries.select("query_id", "period", "split", "is_request"), "query_id")
        names = {"generator": ibis.literal(generator.name), "condition_type": ibis.literal(generator.condition_type)}
        engine.append(
            "known", conditions.mutate(type_order=ibis.literal(CONDITION_TYPES.index(generator.condition_type), "int64"), **names)
        )
    return engine.table("known")


def ask_generators(view: View, generators: Sequence[Generator], engagements: Table, sampled: Table) -> Served:
    """`engagements` are those of the view's requests; `sampled` has the request_id of held-out requests whose candidate lists are kept."""
    engine, known = view.engine, ask_conditions(view, generators)
    engine.empty("hits", {"row": "int64", "generator": "string", "condition_type": "string", "condition_id": "int64", "rank": "int64"})
    engine.empty("lists", {"list_no": "int64", "item_id": "int64", "rank": "int64", "score": "float64"})
    engine.empty("listed", {"generator": "string", "condition_id": "int64", "state": "int64", "period": "int64", "list_no": "int64"})
    for place, generator in enumerate(generators):
        of_generator = known.filter(known.generator == generator.name)
        num_lists = _serve(view, generator, of_generator, engagements, sampled, first_no=place * 2**LIST_BITS)
        say(f"bootstrap: {generator.name}: {num_lists:,} candidate lists")
    return Served(known=known, hits=engine.table("hits"), lists=engine.table("lists"), listed=engine.table("listed"))


def _wanted(view: View, generator: Generator, conditions: Table, engagements: Table, sampled: Table) -> tuple[Table, Table]:
    """The lists that must be made (list_id, condition_id, state, period, held_out), and who asks: request_id, condition_id, list_id."""
    engine, keys = view.engine, ["condition_id", "state", "period"]
    asked = conditions.filter(conditions.is_request).select(*keys, request_id="query_id")
    held_out = asked.semi_join(sampled, "request_id").select(*keys).distinct().mutate(held_out=ibis.literal(True))
    wanted = asked.select(*keys).distinct().left_join(held_out, keys)
    wanted = wanted.select(*keys, held_out=wanted.held_out.fill_null(False))
    # Lists of one period share its statistics, so a chunk is a run of periods.
    number = place_in(["period", "condition_id", "state"])
    wanted = engine.keep("every_wanted", wanted.mutate(list_id=number))
    engaged = asked.join(wanted, keys).join(engagements.select("request_id", "item_id"), "request_id").select("list_id", "item_id")
    holding = generator.holding(view, wanted, engaged.distinct())
    if holding is not None:
        needed = wanted.filter(wanted.held_out).select("list_id").union(holding).distinct()
        wanted = engine.keep("wanted", wanted.semi_join(needed, "list_id").drop("list_id").mutate(list_id=number))
    return wanted, engine.keep("asked", asked.join(wanted, keys).select("request_id", "condition_id", "list_id"))


def _serve(view: View, generator: Generator, conditions: Table, engagements: Table, sampled: Table, *, first_no: int) -> int:
    engine = view.engine
    wanted, asked = _wanted(view, generator, conditions, engagements, sampled)
    total = int(engine.value(wanted.count()))
    size = engine.max_lists or max(total, 1)
    names = {"generator": ibis.literal(generator.name), "condition_type": ibis.literal(generator.condition_type)}
    with Progress(f"bootstrap: {generator.name} candidates", total, "lists") as progress:
        for low in range(0, total, size):
            part = engine.keep("wanted_now", between(wanted, "list_id", low, low + size))
            listed = engine.keep("lists_now", generator.candidates(view, part))
            hits = between(asked, "list_id", low, low + size)
            hits = hits.join(engagements.select("row", "request_id", "item_id"), "request_id")
            hits = hits.join(listed.select("list_id", "item_id", "rank"), ["list_id", "item_id"])
            engine.append("hits", hits.select("row", "condition_id", "rank", **names))
            kept = listed.join(part.filter(part.held_out).select("list_id"), "list_id")
            engine.append("lists", kept.mutate(list_no=kept.list_id + first_no))
            progress.advance(min(size, total - low))
    kept = wanted.filter(wanted.held_out)
    engine.append("listed", kept.mutate(list_no=kept.list_id + first_no, generator=names["generator"]))
    return total


def sample_held_out(engine: Engine, requests: Table, limit: int) -> Table:
    """request_id of at most `limit` held-out requests, evenly spread over days and users."""
    held_out = requests.filter(requests.split != "train").select("request_id")
    total = engine.value(held_out.count())
    if total <= limit:
        return engine.keep("sampled_requests", held_out)
    numbered = held_out.mutate(number=place_in("request_id"))
    spread = ((numbered.number + 1) * limit // total).cast("int64") > (numbered.number * limit // total).cast("int64")
    return engine.keep("sampled_requests", numbered.filter(spread).select("request_id"))
