"""What a user did before a request, in the user's own order and exact to the event.

For the generators the newest few items are rows in the engine; for the dataset whole histories are slices of the user's run of events, as
lists that an engine would have to sort in memory cost many times more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from clrflow.bootstrap.expressions import Table

Ints = npt.NDArray[np.int64]


def recent_items(queries: Table, engagements: Table, length: int, lookback_days: int | None = None) -> Table:
    """The newest `length` engagements before each query: query_id, user_id, period, item_id, age (1 is the newest).

    A query names its user, its day and `first_seq`, the number of the user's engagements before it; with a lookback, engagements of earlier
    days don't count. The join runs over blocks of `length` events, two
    of which always hold the wanted ones: its cost grows with the events, not with their square.
    """
    asked = queries.filter(queries.first_seq > 0).select("query_id", "user_id", "period", "first_seq", asked_day="day")
    newest = asked.mutate(block=((asked.first_seq - 1) // length).cast("int64"))
    blocks = newest.union(newest.mutate(block=newest.block - 1))
    events = engagements.select("user_id", "item_id", "seq", "day", block=(engagements.seq // length).cast("int64"))
    joined = blocks.join(events, ["user_id", "block"])
    joined = joined.mutate(age=joined.first_seq - joined.seq)
    if lookback_days is not None:
        joined = joined.filter(joined.day >= joined.asked_day - lookback_days)
    return joined.filter((joined.age >= 1) & (joined.age <= length)).select("query_id", "user_id", "period", "item_id", "age")


def slices(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Offsets [n + 1] and indices that spell out the ranges [starts, ends) one after another."""
    lengths = ends - starts
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    indices = np.arange(offsets[-1], dtype=np.int64) + np.repeat(starts - offsets[:-1], lengths)
    return offsets, indices
