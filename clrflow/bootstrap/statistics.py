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


def as_of(counts: Table, periods: Table, key: str) -> Table:
    """Running totals as they stood when a period began.

    `counts` has key, period and n (what happened in the period); `periods` has the periods that are asked for. Returns period, key and total:
    the sum of n over earlier periods, where it isn't 0.
    """
    grouped = counts.group_by([key, "period"]).aggregate(n=total(counts.n))
    order = ibis.window(group_by=key, order_by="period")
    steps = grouped.mutate(total=total(grouped.n, running("period", key)), until=grouped["period"].lead().over(order).fill_null(FOR_EVER))
    steps = steps.select(key, "total", since="period", until="until")
    wanted = periods.select("period").distinct()
    joined = steps.join(wanted, [steps.since < wanted["period"], wanted["period"] <= steps.until])
    return joined.filter(joined.total != 0).select("period", key, "total")


def popularity(learnt: Table, periods: Table, lookback: int | None) -> Table:
    """Learnt engagements of each item in the `lookback` periods before each period (None: in all before it): period, item_id, total."""
    counts = learnt.group_by(["item_id", "period"]).aggregate(n=learnt.count())
    if lookback is not None:
        # What happened in period p is taken back when it falls out: it counts last for period p + lookback.
        counts = counts.union(counts.select("item_id", period=(counts["period"] + lookback).cast("int64"), n=-counts.n))
    return as_of(counts, periods, "item_id")
