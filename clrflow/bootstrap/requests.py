"""Cuts each user's events into requests and says which of them are held out.

A request is a session's run of at most `max_targets` engagements. It begins after a pause, after a full request, and at a time cut, so none
straddles one. Order within a user is time, then the row's place in the log: half of some logs' events share their second with another.
Next: histories.py (what came before a request), attribution.py (which condition an engagement belongs to).
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

import ibis

from clrflow.bootstrap.engine import Engine, Table, period_of, place_in, running, total
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
    """The cuts counted back from the newest engagement (none without one); the test span is [newest - test_days, newest]."""
    newest = engine.value(positives.timestamp.max())
    if split.by != "time" or newest is None:
        return Cuts()
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


def span_of(timestamp: ibis.Value, cuts: Cuts) -> ibis.Value:
    """0 before the validation cut, 1 up to the test cut, 2 after it; 0 throughout without cuts."""
    if cuts.test_from is None or cuts.validation_from is None:
        return ibis.literal(0)
    return (timestamp >= ibis.literal(cuts.validation_from)).cast("int64") + (timestamp >= ibis.literal(cuts.test_from)).cast("int64")


def cut_into_requests(
    engine: Engine, positives: Table, *, request: RequestSettings, split: SplitSettings, cuts: Cuts, period_s: int
) -> tuple[Table, Table]:
    """Engagements with their place in a request, and the requests; both kept in the engine.

    engagements: row (0-based in user order over all users), user_id, item_id, timestamp, event_order, action, weight, generator,
    condition_type, condition_id, seq (0-based in the user), request_id, position (0-based in the request), split, period.
    requests: request_id, user_id, requested_at, last_at, first_seq, first_row, num_targets, split, period.
    """
    order = ["timestamp", EVENT_ORDER]
    by_user = ibis.window(group_by="user_id", order_by=order)
    events = positives.mutate(seq=place_in(order, "user_id"), span=span_of(positives.timestamp, cuts))
    starts = (events.seq == 0) | (events.span != events.span.lag().over(by_user))
    if request.session_gap_minutes is not None:
        gap = ibis.interval(microseconds=round(request.session_gap_minutes * 60e6))
        starts = starts | (events.timestamp > events.timestamp.lag().over(by_user) + gap)
    events = events.mutate(starts=starts.fill_null(True).cast("int64"))
    events = events.mutate(session=total(events.starts, running("seq", "user_id")))
    events = events.mutate(place=place_in("seq", ["user_id", "session"]))
    events = events.mutate(position=events.place % request.max_targets)
    events = events.mutate(request_no=total((events.position == 0).cast("int64"), running("seq", "user_id")) - 1)

    cut = engine.keep("cut_events", events)
    users = cut.group_by("user_id").aggregate(num_events=cut.count(), num_requests=cut.request_no.max() + 1)
    users = users.mutate(
        user_row=total(users.num_events, running("user_id")) - users.num_events,
        user_request=total(users.num_requests, running("user_id")) - users.num_requests,
    )
    cut = cut.join(users, "user_id")
    if split.by == "time":
        label = cut.span.cases((0, TRAIN), (1, VALIDATION), (2, TEST))
    else:
        from_last = cut.num_requests - 1 - cut.request_no
        label = ibis.cases((from_last == 0, TEST), (from_last == 1, VALIDATION), else_=TRAIN)
    engagements = engine.keep(
        "engagements",
        cut.select(
            "user_id", "item_id", "timestamp", EVENT_ORDER, "action", "weight", "generator", "condition_type", "condition_id", "seq",
            row=cut.user_row + cut.seq,
            request_id=cut.user_request + cut.request_no,
            position=cut.position.cast("int64"),
            split=label,
            period=period_of(cut.timestamp, period_s),
        ),
    )  # fmt: skip
    engine.drop("cut_events")
    requests = engagements.group_by(["request_id", "user_id", "split"]).aggregate(
        requested_at=engagements.timestamp.min(),
        last_at=engagements.timestamp.max(),
        first_seq=engagements.seq.min(),
        first_row=engagements.row.min(),
        num_targets=engagements.count(),
        period=engagements.period.min(),
    )
    return engagements, engine.keep("requests", requests)


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


def impressions(
    events: Table, engagements: Table, requests: Table, actions: Sequence[Action], *, gap_minutes: float | None, cuts: Cuts
) -> Table:
    """Items shown in a request and not engaged in it: request_id, item_id, shown_at (the first time).

    A negative event between two engagements of one request belongs to it; otherwise to the next request, or else to the last one, when no
    longer a pause than the session gap lies between and no time cut.
    """
    negative = [action.name for action in actions if not action.positive]
    known = engagements.select("user_id", EVENT_ORDER, "request_id", engaged_at=engagements.timestamp)
    relevant = events.filter(events.action.isin([action.name for action in actions]))
    marked = relevant.select("user_id", EVENT_ORDER, "timestamp", "item_id", "action").left_join(known, ["user_id", EVENT_ORDER])
    marked = marked.select("user_id", EVENT_ORDER, "timestamp", "item_id", "action", "request_id", "engaged_at")
    before = ibis.window(group_by="user_id", order_by=["timestamp", EVENT_ORDER], preceding=None, following=0)
    after = ibis.window(group_by="user_id", order_by=["timestamp", EVENT_ORDER], preceding=0, following=None)
    # Request numbers and times grow along a user's events, so the largest so far is the last one and the smallest to come is the next one.
    marked = marked.mutate(
        last_request=marked.request_id.max().over(before), last_at=marked.engaged_at.max().over(before),
        next_request=marked.request_id.min().over(after), next_at=marked.engaged_at.min().over(after),
    )  # fmt: skip
    shown = marked.filter(marked.action.isin(negative))
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
