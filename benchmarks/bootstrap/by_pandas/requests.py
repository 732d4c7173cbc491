"""Cutting events into requests, splits and what was shown in them; the order of requests and their ids are decided here alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from benchmarks.bootstrap.by_pandas.frames import MICROSECONDS, Frame, categories, changes, frame, period_of, read, without
from clrflow.bootstrap.expressions import REQUEST_BITS
from clrflow.bootstrap.settings import BootstrapSettings, SplitSettings
from clrflow.contracts import ITEM, TEST, TRAIN, VALIDATION
from clrflow.data.settings import DataSettings
from clrflow.data.tables import read_table

DAY = 86_400 * MICROSECONDS
COLUMNS = ["user_id", "item_id", "timestamp", "event_order", "action", "generator", "condition_type", "condition_id"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cuts:
    """Microseconds since 1970 at which validation and test begin; None where the split isn't by time."""

    validation_from: int | None = None
    test_from: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
    """A log in requests."""

    cuts: Cuts
    engagements: Frame
    """By user and order, so that a row's number is its place: user_id, item_id, timestamp, action, weight, generator, condition_type,
    condition_id, named, seq, position, query, split, period."""
    requests: Frame
    """In the written order, so that a row's number is its `query`: request_id, user_id, requested_at, first_row, first_seq, period, split."""
    impressions: Frame
    """query, item_id, shown_at, sorted by query, time and item."""


def read_events(uri: str) -> Frame:
    """Clean events by user, time and order; `named` is False where condition_id is null (it is 0 then)."""
    table = read_table(uri, COLUMNS)
    named = table.column("condition_id").is_valid()
    place = table.column_names.index("condition_id")
    events = frame(table.set_column(place, "condition_id", table.column("condition_id").fill_null(0)).append_column("named", named))
    order = np.lexsort([events[name].to_numpy() for name in ("event_order", "timestamp", "user_id")])
    return events.iloc[order].reset_index(drop=True)


def time_cuts(newest: int, split: SplitSettings) -> Cuts:
    """Counted back from the newest engagement, or from the end of its day where both spans are whole days."""
    if split.by != "time":
        return Cuts()
    if float(split.test_days).is_integer() and float(split.validation_days).is_integer():
        newest = newest - newest % DAY + DAY
    test_from = newest - round(split.test_days * DAY)
    return Cuts(validation_from=test_from - round(split.validation_days * DAY), test_from=test_from)


def spans(times: np.ndarray, cuts: Cuts) -> np.ndarray:
    """0 before the validation cut, 1 up to the test cut, 2 after it."""
    if cuts.validation_from is None or cuts.test_from is None:
        return np.zeros(len(times), np.int64)
    return (times >= cuts.validation_from).astype(np.int64) + (times >= cuts.test_from)


def compartments(times: np.ndarray, cuts: Cuts, gap_minutes: float | None) -> np.ndarray:
    """A number for each time; no request reaches from one to another."""
    found = spans(times, cuts)
    return found if gap_minutes is None else times // DAY * 3 + found


def written_order(requests: Frame) -> tuple[np.ndarray, np.ndarray]:
    """Places of the requests, which come by user and time, in the order in which they are written, and their ids in that order."""
    day = requests["requested_at"].to_numpy() // DAY
    places = np.argsort(day, kind="stable")
    day = day[places]
    return places, (day << REQUEST_BITS) + np.arange(len(day)) - np.searchsorted(day, day)


def cut(events: Frame, items: Frame, settings: BootstrapSettings, data: DataSettings, period_s: int) -> Cut:
    weights = {action.name: action.weight for action in data.actions if action.positive}
    weight = np.array([weights.get(name, 0.0) for name in events["action"].cat.categories])[events["action"].cat.codes]
    positive = weight > 0
    engaged = events[positive].reset_index(drop=True)
    engaged["weight"] = weight[positive]
    unknown = (engaged["condition_type"] == ITEM) & ~engaged["condition_id"].isin(items["item_id"])
    engaged["named"] &= ~unknown
    user, times = engaged["user_id"].to_numpy(), engaged["timestamp"].to_numpy()
    cuts = time_cuts(int(times.max()), settings.split)
    gap = settings.request.session_gap_minutes
    starts = changes(user, compartments(times, cuts, gap))
    if gap is not None:
        starts[1:] |= times[1:] > times[:-1] + round(gap * 60 * MICROSECONDS)
    engaged["seq"] = engaged.groupby("user_id", sort=False).cumcount()
    engaged["period"] = period_of(times, period_s)
    engaged["position"] = engaged.groupby(starts.cumsum(), sort=False).cumcount() % settings.request.max_targets

    begins = (engaged["position"] == 0).to_numpy()
    first_row = np.flatnonzero(begins)
    requests = engaged.iloc[first_row][["user_id", "timestamp", "seq", "period"]].set_axis(
        ["user_id", "requested_at", "first_seq", "period"], axis=1
    )
    requests["first_row"] = first_row
    requests["split"] = _splits(requests, cuts)
    places, ids = written_order(requests)
    query_of = np.empty(len(places), np.int64)
    query_of[places] = np.arange(len(places))
    engaged["query"] = query_of[begins.cumsum() - 1]
    requests = requests.iloc[places].reset_index(drop=True)
    requests["request_id"] = ids
    engaged["split"] = requests["split"].to_numpy()[engaged["query"]]
    return Cut(cuts=cuts, engagements=engaged, requests=requests, impressions=_impressions(events, positive, engaged, gap, cuts))


def _splits(requests: Frame, cuts: Cuts) -> pd.Categorical[str]:
    if cuts.test_from is not None:
        code = spans(requests["requested_at"].to_numpy(), cuts)
    else:
        from_last = requests.groupby("user_id", sort=False).cumcount(ascending=False).to_numpy()
        code = np.maximum(2 - from_last, 0)
    return categories(code, [TRAIN, VALIDATION, TEST])


def _impressions(events: Frame, positive: np.ndarray, engaged: Frame, gap_minutes: float | None, cuts: Cuts) -> Frame:
    """An unwanted event between two engagements of one request is that request's, else the next one's, else the last one's, if near."""
    user, times = events["user_id"].to_numpy(), events["timestamp"].to_numpy()
    number, size = np.arange(len(events)), len(events)
    before = np.maximum.accumulate(np.where(positive, number, -1))
    after = np.minimum.accumulate(np.where(positive, number, size)[::-1])[::-1]
    shown = np.flatnonzero(~positive)
    before, after = before[shown], after[shown]
    query = np.full(size, -1, np.int64)
    query[positive] = engaged["query"].to_numpy()
    has_last = (before >= 0) & (user[before] == user[shown])
    has_next = after < size
    after = np.minimum(after, size - 1)
    has_next &= user[after] == user[shown]
    inside = has_last & has_next & (query[before] == query[after])
    owner = np.where(inside, query[after], -1)
    if gap_minutes is not None:
        gap, span = round(gap_minutes * 60 * MICROSECONDS), compartments(times, cuts, gap_minutes)
        to_next = has_next & (times[after] <= times[shown] + gap) & (span[after] == span[shown])
        to_last = has_last & (times[shown] <= times[before] + gap) & (span[before] == span[shown])
        owner = np.select([inside, to_next, to_last], [owner, query[after], query[before]], -1)
    found = pd.DataFrame({"query": owner, "item_id": events["item_id"].to_numpy()[shown], "shown_at": times[shown]})
    found = found[owner >= 0].groupby(["query", "item_id"], sort=False)["shown_at"].min().reset_index()
    found = without(found, engaged, ["query", "item_id"])
    return found.sort_values(["query", "shown_at", "item_id"], ignore_index=True)


def sampled(requests: Frame, limit: int) -> np.ndarray:
    """Queries of at most `limit` held-out requests, evenly spread."""
    held_out = np.flatnonzero((requests["split"] != TRAIN).to_numpy())
    total = len(held_out)
    if total <= limit:
        return held_out
    number = np.arange(total)
    return held_out[(number + 1) * limit // total > number * limit // total]


def read_items(uri: str) -> Frame:
    return read(uri, ["item_id", "created_at"])
