"""Lays out the rows of requests, candidates and user states by bucket, and has them nested and written: one folder a day, one file a bucket.

The engine sorts and cuts the rows; nesting.py makes lists of them. A history is a slice of the user's run of events: see nesting._histories.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import ibis

from clrflow import storage
from clrflow.bootstrap.attribution import Attribution
from clrflow.bootstrap.engine import BUCKET, Engine, Part, spans_of
from clrflow.bootstrap.expressions import Table
from clrflow.bootstrap.figures import Sizes, add
from clrflow.bootstrap.generators import Generator, View, known_generators
from clrflow.bootstrap.nesting import NestCandidates, NestRequests, NestUserStates
from clrflow.bootstrap.serve import Served
from clrflow.contracts import CONDITION_TYPES, USER_STATES
from clrflow.data.tables import write_file
from clrflow.progress import Progress

REQUESTS_A_BUCKET = 8192
"""Requests that are nested at once; at 200 events of history about 50 MB."""
LISTED_A_BUCKET = 1024
"""Held-out requests whose candidates are nested at once; at 14 lists of 100 about 1.4 million rows."""


def write_requests(
    view: View, generators: Sequence[Generator], engagements: Table, found: Attribution, shown: Table, folder: str
) -> dict[int, Sizes]:
    """contracts.REQUESTS of the view's requests, sorted by number; what each day's files hold.

    `shown` has request_id, item_id, shown_at (see requests.impressions).
    """
    size = REQUESTS_A_BUCKET
    details = engagements.select("row", "item_id", "action", "timestamp", "position")
    targets = found.targets.join(details, "row")
    targets = targets.select(*found.targets.columns, "item_id", "action", "timestamp", "position", query_id="request_id").drop("request_id")
    seen = shown.select("shown_at", "item_id", query_id="request_id")
    parts = _parts(view, generators, found.conditions, size) | {
        "targets": _part(view, "targets", targets, size, "query_id", "position", "condition", "source", "generator"),
        "impressions": _part(view, "impressions", seen, size, "query_id", "shown_at", "item_id"),
    }
    work = NestRequests(folder=folder, bucket_size=size, max_history=view.settings.request.max_history)
    by_day: dict[int, list[Sizes]] = defaultdict(list)
    buckets = _buckets(view.engine, view.queries, size)
    with Progress("bootstrap: requests", sum(buckets.values()), "requests") as progress:
        for written in view.engine.each(spans_of(buckets, size), parts, work):
            for day, sizes in written:
                by_day[day].append(sizes)
                progress.advance(sizes.requests)
    return {day: add(sizes, Sizes) for day, sizes in sorted(by_day.items())}


def write_user_states(view: View, generators: Sequence[Generator], known: Table, folder: str) -> int:
    """contracts.USER_STATES, sorted by user; `known` are their conditions (see attribution.known_conditions). Returns the number of users."""
    size = REQUESTS_A_BUCKET
    work = NestUserStates(folder=folder, bucket_size=size, max_history=view.settings.request.max_history)
    parts = _parts(view, generators, known, size)
    buckets = _buckets(view.engine, view.queries, size)
    with Progress("bootstrap: user states", sum(buckets.values()), "users") as progress:
        for num_users in view.engine.each(spans_of(buckets, size), parts, work):
            progress.advance(num_users)
    if not buckets:
        write_file(storage.join(folder, "part-00000.parquet"), USER_STATES.empty_table(), USER_STATES)
    return sum(buckets.values())


def write_candidates(view: View, served: Served, sampled: Table, folder: str) -> dict[int, dict[str, tuple[int, int]]]:
    """contracts.CANDIDATES of the sampled held-out requests, by request, generator and place of the condition.

    Returns (lists, their items) by generator of each day.
    """
    engine, size = view.engine, LISTED_A_BUCKET
    asked = served.known.filter(served.known.is_request).select(
        "query_id", "generator", "type_order", "condition_type", "condition_id", "state", "period", weakness=-served.known.score
    )
    asked = engine.keep("listed_conditions", asked.semi_join(sampled.select(query_id="request_id"), "query_id"))
    numbered = asked.join(served.listed, ["generator", "condition_id", "state", "period"])
    numbered = numbered.select("query_id", "type_order", "generator", "weakness", "condition_type", "condition_id", "list_no")
    heads = _part(view, "listed", numbered, size, "query_id", "type_order", "generator", "weakness", "condition_id")
    # A list stands once in a bucket, however many of its requests ask for it.
    rows = (
        heads.table.select(BUCKET, "list_no").distinct().join(served.lists, "list_no").select(BUCKET, "list_no", "rank", "item_id", "score")
    )
    lists = Part(table=engine.keep("part_lists", rows, sorted_by=[BUCKET]), order_by=("list_no", BUCKET, "rank"))
    by_day: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    work = NestCandidates(folder=folder, bucket_size=size)
    buckets = _buckets(engine, asked, size)
    for written in engine.each(spans_of(buckets, size), {"heads": heads, "lists": lists}, work):
        for day, name, num_lists, num_items in written:
            before = by_day[day].get(name, (0, 0))
            by_day[day][name] = (before[0] + num_lists, before[1] + num_items)
    return dict(by_day)


def _parts(view: View, generators: Sequence[Generator], conditions: Table, size: int) -> dict[str, Part]:
    """The parts that requests and user states share."""
    heads = _in_buckets(view.queries.select("query_id", "user_id", "requested_at", "split", "first_seq", "day"), size)
    tokens = view.engine.keep("tokens", _tokens(view, generators, conditions))
    shown = conditions.join(tokens, ["condition_type", "condition_id", "state"]).select("query_id", "index", "place", "item_id")
    named = conditions.select("query_id", "index", "role", "condition_type", "condition_id", "score")
    return {
        "heads": Part(table=heads, order_by=("query_id",)),
        "events": Part(table=_events_of(view, heads), order_by=(BUCKET, "user_id", "seq")),
        "conditions": _part(view, "conditions", named, size, "query_id", "index"),
        "shown": _part(view, "shown", shown, size, "query_id", "index", "place"),
    }


def _part(view: View, name: str, rows: Table, size: int, *order_by: str) -> Part:
    """Rows with a query_id, computed once for all buckets: a join would be made anew for every span."""
    return Part(table=view.engine.keep(f"part_{name}", _in_buckets(rows, size), sorted_by=[BUCKET]), order_by=order_by)


def _events_of(view: View, heads: Table) -> Table:
    """What the histories of a bucket's queries may hold: BUCKET, user_id, seq, item_id, action, timestamp."""
    asked = heads.group_by([BUCKET, "user_id"]).aggregate(
        low=heads.first_seq.min() - view.settings.request.max_history, high=heads.first_seq.max(), asked_day=heads.day.min()
    )
    joined = asked.join(view.history, "user_id")
    wanted = (joined.seq >= joined.low) & (joined.seq < joined.high)
    if view.settings.lookback_days is not None:
        wanted = wanted & (joined.day >= joined.asked_day - view.settings.lookback_days)
    return joined.filter(wanted).select(BUCKET, "user_id", "seq", "item_id", "action", "timestamp")


def _tokens(view: View, generators: Sequence[Generator], conditions: Table) -> Table:
    """condition_type, condition_id, state, place, item_id: what condition tokens show.

    A log may name conditions of a type whose generators are switched off, so every type has one that says what it shows.
    """
    parts = []
    every = [*generators, *known_generators(view.settings)]
    for condition_type in CONDITION_TYPES[1:]:
        generator = next((one for one in every if one.condition_type == condition_type), None)
        mine = conditions.filter(conditions.condition_type == condition_type).select("condition_id", "state").distinct()
        shown = generator.shown_items(view, mine) if generator is not None else None
        if shown is not None:
            parts.append(shown.select("condition_id", "state", "place", "item_id", condition_type=ibis.literal(condition_type)))
    return ibis.union(*parts) if len(parts) > 1 else parts[0]


def _in_buckets(table: Table, size: int) -> Table:
    return table.mutate(**{BUCKET: (table.query_id // size).cast("int64")})


def _buckets(engine: Engine, queries: Table, size: int) -> dict[int, int]:
    """Number of queries by bucket, ascending."""
    numbers = _in_buckets(queries.select("query_id").distinct(), size)
    rows = engine.arrow(numbers.group_by(BUCKET).aggregate(n=numbers.count()).order_by(BUCKET))
    return dict(zip(rows.column(BUCKET).to_pylist(), rows.column("n").to_pylist(), strict=True))
