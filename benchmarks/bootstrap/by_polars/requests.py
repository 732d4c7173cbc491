"""Cutting events into requests, splits and what was shown in them; the order of requests and their ids are decided here alone."""

from __future__ import annotations

import dataclasses

import polars as pl

from benchmarks.bootstrap.by_pandas.requests import COLUMNS, DAY, Cuts, time_cuts
from benchmarks.bootstrap.by_polars.frames import MICROSECONDS, PLACE, period_of, read
from clrflow.bootstrap.expressions import REQUEST_BITS
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.contracts import ITEM, TEST, TRAIN, VALIDATION
from clrflow.data.settings import DataSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
    """A log in requests; see by_pandas.requests.Cut."""

    cuts: Cuts
    engagements: pl.DataFrame
    requests: pl.DataFrame
    impressions: pl.DataFrame


def spans(cuts: Cuts) -> pl.Expr:
    """0 before the validation cut, 1 up to the test cut, 2 after it."""
    time = pl.col("timestamp")
    if cuts.validation_from is None or cuts.test_from is None:
        return time * 0
    return (time >= cuts.validation_from).cast(pl.Int64) + (time >= cuts.test_from).cast(pl.Int64)


def in_written_order(requests: pl.DataFrame) -> pl.DataFrame:
    """The requests, which come by user and time, in the order in which they are written, with request_id."""
    day = pl.col("requested_at") // DAY
    ordered = requests.sort(day, maintain_order=True)
    return ordered.with_columns(request_id=day * 2**REQUEST_BITS + PLACE.over(day))


def cut(uri: str, items: pl.DataFrame, settings: BootstrapSettings, data: DataSettings, period_s: int) -> Cut:
    events = read(uri, COLUMNS).sort("user_id", "timestamp", "event_order")
    weights = {action.name: action.weight for action in data.actions if action.positive}
    events = events.with_columns(weight=pl.col("action").replace_strict(weights, default=0.0, return_dtype=pl.Float64))
    positive = pl.col("weight") > 0
    cuts = time_cuts(events.filter(positive).select(pl.col("timestamp").max()).item(), settings.split)
    gap = settings.request.session_gap_minutes
    events = events.with_columns(span=spans(cuts))
    # No request reaches from one compartment to another.
    compartment = pl.col("span") if gap is None else pl.col("timestamp") // DAY * 3 + pl.col("span")
    events = events.with_columns(compartment=compartment)
    unknown = (pl.col("condition_type") == ITEM) & ~pl.col("condition_id").is_in(items["item_id"].implode())
    begins = (pl.col("user_id") != pl.col("user_id").shift()) | (pl.col("compartment") != pl.col("compartment").shift())
    if gap is not None:
        begins = begins | (pl.col("timestamp") > pl.col("timestamp").shift() + round(gap * 60 * MICROSECONDS))
    engaged = events.filter(positive).with_columns(
        condition_id=pl.when(unknown.fill_null(False)).then(None).otherwise(pl.col("condition_id")),
        seq=PLACE.over("user_id"),
        row=PLACE,
        period=period_of("timestamp", period_s),
        session=begins.fill_null(True).cum_sum(),
    )
    engaged = engaged.with_columns(position=PLACE.over("session") % settings.request.max_targets)
    engaged = engaged.with_columns(number=(pl.col("position") == 0).cum_sum().cast(pl.Int64) - 1)
    requests = engaged.filter(pl.col("position") == 0).select(
        "number", "user_id", "span", "period", requested_at="timestamp", first_seq="seq", first_row="row"
    )
    from_last = pl.len().over("user_id").cast(pl.Int64) - 1 - PLACE.over("user_id")
    code = pl.col("span") if cuts.test_from is not None else pl.max_horizontal(2 - from_last, pl.lit(0, pl.Int64))
    requests = requests.with_columns(split=code.replace_strict({0: TRAIN, 1: VALIDATION, 2: TEST}, return_dtype=pl.String))
    requests = in_written_order(requests).with_columns(query=PLACE)
    engaged = engaged.join(requests.select("number", "query", "split"), on="number", maintain_order="left")
    return Cut(cuts=cuts, engagements=engaged, requests=requests, impressions=_impressions(events, engaged, gap))


def _impressions(events: pl.DataFrame, engaged: pl.DataFrame, gap_minutes: float | None) -> pl.DataFrame:
    """An unwanted event between two engagements of one request is that request's, else the next one's, else the last one's, if near."""
    marked = events.with_columns(place=PLACE, positive=pl.col("weight") > 0)
    queries = marked.filter("positive").select("place", at="timestamp", of="compartment").with_columns(query=engaged["query"])
    marked = marked.join(queries, on="place", how="left", maintain_order="left")
    columns = ("query", "at", "of")
    marked = marked.with_columns(
        *(pl.col(name).forward_fill().over("user_id").alias(f"last_{name}") for name in columns),
        *(pl.col(name).backward_fill().over("user_id").alias(f"next_{name}") for name in columns),
    )
    inside = pl.when(pl.col("last_query") == pl.col("next_query")).then("next_query")
    owner: pl.Expr = inside
    if gap_minutes is not None:
        gap = round(gap_minutes * 60 * MICROSECONDS)
        to_next = (pl.col("next_at") <= pl.col("timestamp") + gap) & (pl.col("next_of") == pl.col("compartment"))
        to_last = (pl.col("timestamp") <= pl.col("last_at") + gap) & (pl.col("last_of") == pl.col("compartment"))
        owner = inside.when(to_next).then("next_query").when(to_last).then("last_query")
    shown = marked.filter(~pl.col("positive")).select("item_id", "timestamp", query=owner).drop_nulls("query")
    shown = shown.group_by("query", "item_id").agg(shown_at=pl.col("timestamp").min())
    return shown.join(engaged, on=["query", "item_id"], how="anti").sort("query", "shown_at", "item_id")


def sampled(requests: pl.DataFrame, limit: int) -> pl.DataFrame:
    """query of at most `limit` held-out requests, evenly spread."""
    held_out = requests.filter(pl.col("split") != TRAIN).sort("query").select("query")
    total = len(held_out)
    if total <= limit:
        return held_out
    return held_out.filter((PLACE + 1) * limit // total > PLACE * limit // total)
