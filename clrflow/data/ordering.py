"""The order of clean events: by day, user and time, and a fixed one among the events of one user at one time.

Half of some logs' events share their second with another of the same user, and what "the last event" is hangs on them. Where the log says
nothing (`event_order`), ties lie in a pseudo-random order that is the same for the same events, whatever files they came in: the order of ids
would put popular or old items first everywhere.
"""

from __future__ import annotations

import numpy as np

PRIME = 2_147_483_647
"""Modulus of the mixing; products of two remainders stay below 2^63."""


def _remainder(sql: str) -> str:
    """A number mod PRIME, never negative."""
    return f"((({sql}) % {PRIME} + {PRIME}) % {PRIME})"


def _mixed() -> str:
    """A pseudo-random number of (user_id, item_id). Squared, as by sums and products alone one item would precede another for nearly all users."""
    mixed = f"(({_remainder('user_id')} * 48271 + {_remainder('item_id')} * 69621) % {PRIME})"
    return f"(({mixed} * {mixed} + {mixed} * 16807) % {PRIME})"


EVENTS_SORTED_BY = f"user_id, timestamp, event_order NULLS LAST, {_mixed()}, item_id, action"
"""SQL that leaves no ties between clean events, of which (user_id, item_id, timestamp, action) is unique."""


class Places:
    """Numbers the events of each (user, time) from 0 while their sorted rows stream by."""

    def __init__(self) -> None:
        self._last: tuple[int, int, int] | None = None

    def of(self, user_ids: np.ndarray, times: np.ndarray) -> np.ndarray:
        """int64 places of the next rows, at least one; `times` as whole numbers."""
        rows = np.arange(len(user_ids))
        begins = np.ones(len(user_ids), dtype=bool)
        begins[1:] = (user_ids[1:] != user_ids[:-1]) | (times[1:] != times[:-1])
        offset = 0
        if self._last is not None and self._last[:2] == (int(user_ids[0]), int(times[0])):
            offset = self._last[2] + 1
        places = rows - np.maximum.accumulate(np.where(begins, rows, 0))
        first_run = int(np.argmax(begins[1:])) + 1 if begins[1:].any() else len(rows)
        places[:first_run] += offset
        self._last = (int(user_ids[-1]), int(times[-1]), int(places[-1]))
        return places.astype(np.int64)
