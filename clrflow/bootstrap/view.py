"""Lays the tables out as generators see them: what may be learnt from, point-in-time queries, recent items.

A Site is what all queries share and is laid out once; a View is a Site as some of the queries see it.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping

import ibis

from clrflow.bootstrap.engine import Engine
from clrflow.bootstrap.expressions import DAY_SECONDS, REQUEST_BITS, Table, day_of, period_of, period_seconds, place_in
from clrflow.bootstrap.generators.base import View
from clrflow.bootstrap.generators.interest import RECENT_ITEMS
from clrflow.bootstrap.histories import recent_items
from clrflow.bootstrap.requests import Cuts
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.bootstrap.statistics import as_of, popularity_growth
from clrflow.contracts import TRAIN


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """The log, cut and split, and the tables beside it; all of it kept in the engine or lying on disk."""

    engine: Engine
    settings: BootstrapSettings
    events: Table
    """Clean events, all actions."""
    engagements: Table
    requests: Table
    items: Table
    items_uri: str
    learnt: Table
    item_interests: Table
    followed: Table
    entries: Table
    newest: datetime.datetime
    """Time of the newest engagement."""

    def requests_view(self, requests: Table) -> View:
        """As these requests (of `requests`) see it."""
        columns = ("user_id", "requested_at", "period", "day", "first_seq", "split")
        return self._view(requests.select(*columns, query_id="request_id", is_request=ibis.literal(True)))

    def end_view(self) -> View:
        """As each user sees it just after the newest event, in the period and on the day after it."""
        period_s = period_seconds(self.settings.granularity_days)
        moment = self.newest + datetime.timedelta(microseconds=1)
        users = self.engagements.group_by("user_id").aggregate(first_seq=self.engagements.seq.max() + 1)
        queries = users.mutate(requested_at=ibis.literal(moment).cast(self.engagements.timestamp.type()))
        queries = queries.mutate(
            period=(period_of(queries.requested_at, period_s) + 1).cast("int64"),
            day=(day_of(queries.requested_at) + 1).cast("int64"),
            split=ibis.literal(""),
            is_request=ibis.literal(False),
            place=place_in("user_id"),
        )
        queries = queries.mutate(query_id=(queries.day * 2**REQUEST_BITS + queries.place).cast("int64"))
        return self._view(queries.drop("place"))

    def _view(self, queries: Table) -> View:
        engine, settings = self.engine, self.settings
        queries = engine.keep("queries", queries)
        length = max(RECENT_ITEMS, settings.item.recent_items)
        back = lookback_periods(settings)
        grown = engine.once("popularity_growth", lambda: popularity_growth(self.learnt, back))
        return View(
            engine=engine,
            settings=settings,
            queries=queries,
            recent=engine.keep("recent", recent_items(queries, self.engagements, length, settings.lookback_days)),
            history=self.engagements,
            learnt=self.learnt,
            popularity=engine.keep("popularity", as_of(grown, queries, "item_id")),
            items=self.items,
            items_uri=self.items_uri,
            item_interests=self.item_interests,
            followed=self.followed,
            entries=self.entries,
            lookback=back,
        )


def lookback_periods(settings: BootstrapSettings) -> int | None:
    """Whole periods of the lookback, at least one; None without a lookback."""
    if settings.lookback_days is None:
        return None
    return max(1, settings.lookback_days * DAY_SECONDS // period_seconds(settings.granularity_days))


def lay_out(
    engine: Engine,
    settings: BootstrapSettings,
    tables: Mapping[str, Table],
    items_uri: str,
    *,
    engagements: Table,
    requests: Table,
    cuts: Cuts,
) -> Site:
    """Keep in the engine what all queries share; `tables` are the cleaned ones by name."""
    learnt = engagements.filter(engagements.split == TRAIN)
    follows = tables["user_interests"]
    return Site(
        engine=engine,
        settings=settings,
        events=tables["events"],
        engagements=engagements,
        requests=requests,
        items=tables["items"],
        items_uri=items_uri,
        learnt=learnt.select("user_id", "item_id", "seq", "period"),
        item_interests=engine.keep("item_interests", item_interests(tables["items"])),
        followed=follows.group_by(["user_id", "interest_id"]).aggregate(followed_at=follows.followed_at.min()),
        entries=engine.keep("board_entries", _entries(tables["boards"], requests, cuts, period_seconds(settings.granularity_days))),
        newest=engine.value(engagements.timestamp.max()),
    )


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
