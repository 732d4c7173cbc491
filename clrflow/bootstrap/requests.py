"""Cuts each user's events into requests and says which of them are held out.

A request is a session's run of at most `max_targets` engagements. It begins after a pause, after a full request, and at a time cut, so none
straddles one. Where pauses matter midnight (UTC) is one, so that a day's requests hang on no later day and can be kept. Order within a user is
time, then event_order: half of some logs' events share their second with another.
Next: histories.py (what came before a request), attribution.py (which condition an engagement belongs to).
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

import ibis

from clrflow.bootstrap.engine import Engine
from clrflow.bootstrap.expressions import (
    REQUEST_BITS,
    ROW_BITS,
    Column,
    Table,
    day_of,
    period_of,
    place_in,
    running,
    total,
)
from clrflow.bootstrap.settings import RequestSettings, SplitSettings
from clrflow.contracts import ITEM, TEST, TRAIN, VALIDATION
from clrflow.data.schema import EVENT_ORDER
from clrflow.data.settings import Action
from clrflow.errors import DataError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cuts:
    """The global times at which validation and test begin; None where the split isn't by time."""

    validation_from: datetime.datetime | None = None
    test_from: datetime.datetime | None = None


def time_cuts(engine: Engine, positives: Table, split: SplitSettings) -> Cuts:
    """The cuts counted back from the newest engagement; none without one.

    Whole numbers of days are whole UTC days, the newest of which, however short so far, is the first one counted: then a day has one split.
    Others are counted from the newest engagement's time.
    """
    newest = engine.value(positives.timestamp.max())
    if split.by != "time" or newest is None:
        return Cuts()
    if all(float(days).is_integer() for days in (split.test_days, split.validation_days)):
        newest = newest.replace(hour=0, minute=0, second=0, microsecond=0) + datetime.timedelta(days=1)
    test_from = newest - datetime.timedelta(days=split.test_days)
    return Cuts(validation_from=test_from - datetime.timedelta(days=split.validation_days), test_from=test_from)


def positive_events(events: Table, actions: Sequence[Action]) -> Table:
    """Engagements with the `weight` of their action."""
    weights = {action.name: action.weight for action in actions if action.positive}
    chosen = events.filter(events.action.isin(list(weights)))
    return chosen.mutate(weight=chosen.action.cases(*weights.items()).cast("float64"))


def without_unknown_conditions(positives: Table, items: Table) -> Table:
    """Engagements whose logged condition is an item that the items table lacks (deleted, or dropped by a rule) lose its id.

    Nothing can be shown of such an item, so it is unusable as a condition; the engagement itself is kept and counted as such.
    """
    unknown = (positives.condition_type == ITEM) & ~positives.condition_id.isin(items.item_id)
    return positives.mutate(condition_id=unknown.ifelse(ibis.null("int64"), positives.condition_id))


def span_of(timestamp: Column, cuts: Cuts) -> Column:
    """0 before the validation cut, 1 up to the test cut, 2 after it; 0 throughout without cuts."""
    if cuts.test_from is None or cuts.validation_from is None:
        return ibis.literal(0, "int64")
    return (timestamp >= ibis.literal(cuts.validation_from)).cast("int64") + (timestamp >= ibis.literal(cuts.test_from)).cast("int64")


def cut_into_requests(
    engine: Engine, positives: Table, *, request: RequestSettings, split: SplitSettings, cuts: Cuts, period_s: int
) -> tuple[Table, Table]:
    """Engagements with their place in a request, and the requests; both kept in the engine.

    engagements: row (its number: day and place in the day, see expressions.ROW_BITS), user_id, item_id, timestamp, event_order, action, weight,
    generator, condition_type, condition_id, seq (0-based in the user), request_id, position (0-based in the request), split, period, day.
    requests: request_id (see expressions.REQUEST_BITS), user_id, requested_at, last_at, first_seq, num_targets, split, period, day. Numbers grow
    with (day, user, time); a request's day is that of its first engagement.
    """
    order = ["timestamp", EVENT_ORDER]
    by_user = ibis.window(group_by="user_id", order_by=order)
    events = positives.mutate(seq=place_in(order, "user_id"), span=span_of(positives.timestamp, cuts))
    starts = (events.seq == 0) | (events.span != events.span.lag().over(by_user))
    if request.session_gap_minutes is not None:
        gap = ibis.interval(microseconds=round(request.session_gap_minutes * 60e6))
        before = events.timestamp.lag().over(by_user)
        starts = starts | (events.timestamp > before + gap) | (day_of(events.timestamp) != day_of(before))
    events = events.mutate(starts=starts.fill_null(True).cast("int64"))
    events = events.mutate(session=total(events.starts, running("seq", "user_id")))
    events = events.mutate(place=place_in("seq", ["user_id", "session"]))
    events = events.mutate(position=events.place % request.max_targets)
    events = events.mutate(request_no=total((events.position == 0).cast("int64"), running("seq", "user_id")) - 1)
    cut = engine.keep("cut_events", events.drop("starts", "session", "place"))
    requests = engine.keep("requests", _requests(cut, split, period_s))
    # Renamed, as a column of one name on both sides is one too many for a join to tell apart.
    whose = requests.select("user_id", "request_no", "request_id", "first_row", "split", request_day="day")
    placed = cut.join(whose, ["user_id", "request_no"])
    engagements = engine.keep(
        "engagements",
        placed.select(
            "user_id", "item_id", "timestamp", EVENT_ORDER, "action", "weight", "generator", "condition_type", "condition_id", "seq",
            "request_id", "split",
            row=placed.first_row + placed.position,
            position=placed.position.cast("int64"),
            period=period_of(placed.timestamp, period_s),
            day=placed.request_day,
        ),
        sorted_by=["user_id"],
    )  # fmt: skip
    engine.drop("cut_events")
    return engagements, requests.drop("request_no", "first_row")


def _requests(cut: Table, split: SplitSettings, period_s: int) -> Table:
    requests = cut.group_by(["user_id", "request_no"]).aggregate(
        requested_at=cut.timestamp.min(),
        last_at=cut.timestamp.max(),
        first_seq=cut.seq.min(),
        num_targets=cut.count(),
        span=cut.span.min(),
    )
    if split.by == "time":
        label = requests.span.cases((0, TRAIN), (1, VALIDATION), (2, TEST))
    else:
        from_last = requests.request_no.max().over(ibis.window(group_by="user_id")) - requests.request_no
        label = ibis.cases((from_last == 0, TEST), (from_last == 1, VALIDATION), else_=TRAIN)
    requests = requests.mutate(split=label, day=day_of(requests.requested_at), period=period_of(requests.requested_at, period_s))
    order = ["user_id", "request_no"]
    requests = requests.mutate(place=place_in(order, "day"), up_to=total(requests.num_targets, running(order, "day")))
    return requests.mutate(
        request_id=(requests.day * 2**REQUEST_BITS + requests.place).cast("int64"),
        first_row=(requests.day * 2**ROW_BITS + requests.up_to - requests.num_targets).cast("int64"),
    ).drop("span", "place", "up_to")


def refuse_without_training(engine: Engine, requests: Table, split: SplitSettings, cuts: Cuts) -> None:
    """DataError when the split leaves no request to train on."""
    total = engine.value(requests.count())
    if total == 0:
        raise DataError(
            "events: no row has a positive action, so there is no request to make; check data.actions against the values of events.action."
        )
    if engine.value((requests.split == TRAIN).sum()):
        return
    if split.by == "time":
        raise DataError(
            f"bootstrap.split.validation_days={split.validation_days} and test_days={split.test_days} leave no event before "
            f"{cuts.validation_from:%Y-%m-%d %H:%M} to train on; lower them, or widen data.window_days."
        )
    raise DataError(
        f"bootstrap.split.by='last_requests' holds out the last two requests of each user and none of {total} is left to train on; "
        "lower bootstrap.request.max_targets or use by='time'."
    )


def impressions(events: Table, engagements: Table, actions: Sequence[Action], *, gap_minutes: float | None, cuts: Cuts) -> Table:
    """Items shown in a request and not engaged in it: request_id, item_id, shown_at (the first time).

    A negative event between two engagements of one request belongs to it; otherwise to the next request, or else to the last one, when no
    longer a pause than the session gap lies between, and neither a time cut nor midnight.
    """
    negative = [action.name for action in actions if not action.positive]
    order = ["timestamp", EVENT_ORDER]
    columns = ["user_id", *order, "item_id", "request_id", "engaged_at"]
    seen = events.filter(events.action.isin(negative))
    seen = seen.mutate(request_id=ibis.null("int64"), engaged_at=ibis.null(events.timestamp.type()))
    marked = seen.select(*columns).union(engagements.mutate(engaged_at=engagements.timestamp).select(*columns))
    keys: list[str] = ["user_id"]
    if gap_minutes is not None:  # no owner lies beyond midnight, so a day is looked at alone
        marked = marked.mutate(shown_day=day_of(marked.timestamp))
        keys.append("shown_day")
    before = ibis.window(group_by=keys, order_by=order, preceding=None, following=0)
    after = ibis.window(group_by=keys, order_by=order, preceding=0, following=None)
    # Request numbers and times grow along a user's events, so the largest so far is the last one and the smallest to come is the next one.
    marked = marked.mutate(
        last_request=marked.request_id.max().over(before), last_at=marked.engaged_at.max().over(before),
        next_request=marked.request_id.min().over(after), next_at=marked.engaged_at.min().over(after),
    )  # fmt: skip
    shown = marked.filter(marked.engaged_at.isnull())
    owner = ibis.cases((shown.last_request == shown.next_request, shown.next_request))
    if gap_minutes is not None:
        gap, span = ibis.interval(microseconds=round(gap_minutes * 60e6)), span_of(shown.timestamp, cuts)
        to_next = (shown.next_at <= shown.timestamp + gap) & (span_of(shown.next_at, cuts) == span)
        to_last = (shown.timestamp <= shown.last_at + gap) & (span_of(shown.last_at, cuts) == span)
        owner = owner.fill_null(ibis.cases((to_next, shown.next_request), (to_last, shown.last_request)))
    shown = shown.mutate(owner=owner)
    shown = shown.filter(shown.owner.notnull()).select("item_id", "timestamp", request_id="owner")
    shown = shown.group_by(["request_id", "item_id"]).aggregate(shown_at=shown.timestamp.min())
    return shown.anti_join(engagements, ["request_id", "item_id"])
