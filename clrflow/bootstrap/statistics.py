"""What is learnt from the train span: counts of items now, and as they stood before each period.

Held-out events never enter, so a generator's answer to a held-out request is as honest as the model's.
"""

from __future__ import annotations

import ibis

from clrflow.bootstrap.expressions import Table, running, total
from clrflow.contracts import TRAIN

FOR_EVER = 2**62


def item_statistics(items: Table, engagements: Table) -> Table:
    """contracts.ITEM_STATISTICS, sorted by item: every item, those without a train engagement with 0 and null."""
    train = engagements.filter(engagements.split == TRAIN)
    counts = train.group_by("item_id").aggregate(num_engagements=train.count(), first_engaged_at=train.timestamp.min())
    joined = items.select("item_id").left_join(counts, "item_id")
    return joined.select(
        "item_id", num_engagements=joined.num_engagements.fill_null(0).cast("int64"), first_engaged_at=joined.first_engaged_at
    ).order_by("item_id")


def growth(counts: Table, key: str) -> Table:
    """Running totals and how long they stood. `counts` has key, period and n (what happened in the period).

    Returns key, total, since, until: the total as it stood when any of the periods in (since, until] began.
    """
    grouped = counts.group_by([key, "period"]).aggregate(n=total(counts.n))
    order = ibis.window(group_by=key, order_by="period")
    steps = grouped.mutate(total=total(grouped.n, running("period", key)), until=grouped["period"].lead().over(order).fill_null(FOR_EVER))
    return steps.filter(steps.total != 0).select(key, "total", since="period", until="until")


def as_of(grown: Table, periods: Table, key: str) -> Table:
    """Of a table from `growth` what stood when a period began, for the periods of `periods`: period, key, total; none where it is 0."""
    wanted = periods.select("period").distinct()
    joined = grown.join(wanted, [grown.since < wanted["period"], wanted["period"] <= grown.until])
    return joined.select("period", key, "total")


def popularity_growth(learnt: Table, lookback: int | None) -> Table:
    """Learnt engagements of each item in the `lookback` periods before a period (None: in all before it), as `growth` of item_id."""
    counts = learnt.group_by(["item_id", "period"]).aggregate(n=learnt.count())
    if lookback is not None:
        # What happened in period p is taken back when it falls out: it counts last for period p + lookback.
        counts = counts.union(counts.select("item_id", period=(counts["period"] + lookback).cast("int64"), n=-counts.n))
    return growth(counts, "item_id")
