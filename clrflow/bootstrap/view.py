"""Lays the tables out as generators see them: point-in-time queries, recent items, what may be learnt from."""

from __future__ import annotations

import datetime

import ibis

from clrflow.bootstrap.engine import Engine, Table, period_of, period_seconds, place_in
from clrflow.bootstrap.generators.base import View
from clrflow.bootstrap.generators.interest import RECENT_ITEMS
from clrflow.bootstrap.histories import recent_items
from clrflow.bootstrap.requests import Cuts
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.bootstrap.statistics import popularity
from clrflow.contracts import TRAIN


def build_view(
    engine: Engine,
    settings: BootstrapSettings,
    *,
    engagements: Table,
    requests: Table,
    items: Table,
    boards: Table,
    user_interests: Table,
    cuts: Cuts,
) -> View:
    """Keep in the engine what several generators read."""
    period_s = period_seconds(settings.granularity_days)
    queries = engine.keep("queries", _queries(engine, engagements, requests, period_s))
    length = max(RECENT_ITEMS, settings.item.recent_items)
    learnt = engagements.filter(engagements.split == TRAIN)
    return View(
        engine=engine,
        settings=settings,
        queries=queries,
        recent=engine.keep("recent", recent_items(queries, engagements, length)),
        learnt=learnt.select("user_id", "item_id", "seq", "period"),
        popularity=engine.keep("popularity", popularity(engagements, queries)),
        items=items,
        item_interests=engine.keep("item_interests", item_interests(items)),
        followed=user_interests.group_by(["user_id", "interest_id"]).aggregate(followed_at=user_interests.followed_at.min()),
        entries=engine.keep("board_entries", _entries(boards, requests, cuts, period_s)),
    )


def _queries(engine: Engine, engagements: Table, requests: Table, period_s: int) -> Table:
    """Requests under their own numbers, then one query a user just after the newest event, in the period after it."""
    num_requests = engine.value(requests.count())
    newest = engine.value(engagements.timestamp.max())
    at_requests = requests.select(
        "user_id", "requested_at", "period", "first_seq", "split", query_id="request_id", is_request=ibis.literal(True)
    )
    users = engagements.group_by("user_id").aggregate(first_seq=engagements.seq.max() + 1)
    at_the_end = users.mutate(
        query_id=num_requests + place_in("user_id"),
        requested_at=ibis.literal(newest + datetime.timedelta(microseconds=1)).cast(requests.requested_at.type()),
        split=ibis.literal(""),
        is_request=ibis.literal(False),
    )
    at_the_end = at_the_end.mutate(period=period_of(at_the_end.requested_at, period_s) + 1)
    return at_requests.union(at_the_end.select(*at_requests.columns))


def item_interests(items: Table) -> Table:
    """item_id, interest_id, place (0-based in ascending order of the interest), num_interests; an interest that is listed twice counts once."""
    rows = items.select("item_id", interest_id=items.interests.unnest()).distinct()
    rows = rows.mutate(place=place_in("interest_id", "item_id"))
    return rows.mutate(num_interests=rows.count().over(ibis.window(group_by="item_id")).cast("int64"))


def _entries(boards: Table, requests: Table, cuts: Cuts, period_s: int) -> Table:
    """Board entries by age, an item that was added twice at its first time.

    What a user adds in a held-out span tells of held-out engagements, so such entries are the user's own to ask from, not a graph's to learn.
    """
    first = boards.group_by(["board_id", "user_id", "item_id"]).aggregate(added_at=boards.added_at.min())
    if cuts.validation_from is not None:
        learnt = first.mutate(learnt=first.added_at < ibis.literal(cuts.validation_from))
    else:
        held_out = requests.filter(requests.split != TRAIN)
        ends = held_out.group_by("user_id").aggregate(train_until=held_out.requested_at.min())
        joined = first.left_join(ends, "user_id")
        learnt = joined.select(*first.columns, learnt=joined.train_until.isnull() | (joined.added_at < joined.train_until))
    return learnt.mutate(
        entry=place_in(["added_at", "item_id"], "board_id") + 1,
        period=period_of(learnt.added_at, period_s),
    )
