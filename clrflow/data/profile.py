"""What clean data look like in a few kilobytes: enough to tell later whether the next data are of the same kind (drift.py).

Everything in it is a count, an order statistic or a sketch, so equal data give an equal profile, however their rows lie.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from clrflow.data.clean import day_of

if TYPE_CHECKING:
    import duckdb

VERSION = 1
SKETCH_SIZE = 2048
"""Ids kept of each kind: an overlap estimated from them has a standard error of at most 1.1 percentage points."""
PERCENTILES = tuple(range(0, 101, 5))
NOT_LOGGED = ""
"""Key of engagements whose condition the log doesn't name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """A data set in outline; times are microseconds since 1970."""

    first_event_us: int
    last_event_us: int
    events_by_day: dict[str, dict[str, int]]
    """Events by ISO day and action; days without events are not in it."""
    conditions: dict[str, int]
    """Engagements (positive actions) by logged condition type, NOT_LOGGED among them."""
    num_users: int
    """With events in the window."""
    num_items: int
    """In the catalogue."""
    users: list[str]
    """The SKETCH_SIZE smallest hashes of user ids, ascending, as hexadecimal numbers of 16 digits."""
    items: list[str]
    embedding_dim: int
    norms: list[float]
    """Quantiles of the content embeddings' Euclidean norms at PERCENTILES."""

    @property
    def num_events(self) -> int:
        return sum(sum(counts.values()) for counts in self.events_by_day.values())

    @property
    def actions(self) -> dict[str, int]:
        """Events by action."""
        total: dict[str, int] = {}
        for counts in self.events_by_day.values():
            for action, count in counts.items():
                total[action] = total.get(action, 0) + count
        return total

    def whole_days(self) -> dict[datetime.date, int]:
        """Events of each day that the data cover from end to end, 0 for a hole; the first and the last one are whole only if their events reach
        into the day's first or last hour."""
        first, last = _time(self.first_event_us), _time(self.last_event_us)
        begin = first.date() if first.hour == 0 else first.date() + datetime.timedelta(days=1)
        end = last.date() if last.hour == 23 else last.date() - datetime.timedelta(days=1)
        days = [begin + datetime.timedelta(days=number) for number in range((end - begin).days + 1)]
        return {day: sum(self.events_by_day.get(day.isoformat(), {}).values()) for day in days}

    def as_json(self) -> dict[str, Any]:
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Profile | None:
        """None for a profile of another version, which can't be compared with."""
        if raw.get("version") != VERSION:
            return None
        return cls(**{name: value for name, value in raw.items() if name != "version"})


def _time(microseconds: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=microseconds)


def overlap(then: list[str], now: list[str]) -> float:
    """The estimated share of the ids then that are there now, from two sketches; 1 where there was none."""
    # Below the smaller of the two largest hashes both sketches are complete; one that isn't full is complete everywhere.
    limits = [sketch[-1] for sketch in (then, now) if len(sketch) == SKETCH_SIZE]
    known = [value for value in then if not limits or value <= min(limits)]
    return len(set(known) & set(now)) / len(known) if known else 1.0


def profile_of(con: duckdb.DuckDBPyConnection, positive_actions: Iterable[str], embedding_dim: int) -> Profile:
    """Look at the views `used_events` and `clean_items`."""
    positive = set(positive_actions)
    counted = con.execute(
        f"SELECT CAST({day_of('timestamp')} AS VARCHAR), action, coalesce(condition_type, '{NOT_LOGGED}'), count(*), "
        "epoch_us(min(timestamp)), epoch_us(max(timestamp)) FROM used_events GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    ).fetchall()
    by_day: dict[str, dict[str, int]] = {}
    conditions: dict[str, int] = {}
    for day, action, condition, count, _, _ in counted:
        actions = by_day.setdefault(day, {})
        actions[action] = actions.get(action, 0) + count
        if action in positive:
            conditions[condition] = conditions.get(condition, 0) + count
    con.execute("CREATE OR REPLACE TEMP TABLE distinct_users AS SELECT DISTINCT user_id FROM used_events")
    # Doubles, as squares of large floats overflow; quantiles that are values of the data don't hang on the order of rows.
    doubles = "CAST(content_embedding AS DOUBLE[])"
    shares = ", ".join(str(percent / 100) for percent in PERCENTILES)
    norms = con.execute(
        f"SELECT quantile_disc(norm, [{shares}]) FROM (SELECT sqrt(list_dot_product({doubles}, {doubles})) AS norm FROM clean_items)"
    ).fetchall()[0][0]
    return Profile(
        first_event_us=min(row[4] for row in counted),
        last_event_us=max(row[5] for row in counted),
        events_by_day=by_day,
        conditions=conditions,
        num_users=_count(con, "distinct_users"),
        num_items=_count(con, "clean_items"),
        users=_sketch(con, "user_id", "distinct_users"),
        items=_sketch(con, "item_id", "clean_items"),
        embedding_dim=embedding_dim,
        norms=list(norms),
    )


def _count(con: duckdb.DuckDBPyConnection, table: str) -> int:
    return int(con.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])


def _sketch(con: duckdb.DuckDBPyConnection, column: str, table: str) -> list[str]:
    """MD5, as DuckDB's own hash may change with its version, and then nobody would be known any more."""
    query = f"SELECT left(md5(CAST({column} AS VARCHAR)), 16) AS hash FROM {table} ORDER BY hash LIMIT {SKETCH_SIZE}"
    return [row[0] for row in con.execute(query).fetchall()]
