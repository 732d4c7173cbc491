"""The bootstrap step: clean events in, request-level training data out, a folder a day.

requests.py cuts and splits, view.py says what was known when, generators/ name conditions and candidates, serve.py asks them, attribution.py
joins engagements to conditions, dataset.py has them nested and written, days.py takes over what an earlier run built.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from clrflow import storage
from clrflow.bootstrap.attribution import attribute, drop_scratch, known_conditions
from clrflow.bootstrap.dataset import write_candidates, write_requests, write_user_states
from clrflow.bootstrap.days import Day, days_of, mark, take_over
from clrflow.bootstrap.engine import Engine, connect, spans_of
from clrflow.bootstrap.expressions import DAY_SECONDS, Table, day_of, period_seconds
from clrflow.bootstrap.figures import DayFigures, add, figures_by_day
from clrflow.bootstrap.generators import Generator, enabled_generators
from clrflow.bootstrap.quality import Quality, measure
from clrflow.bootstrap.report import render
from clrflow.bootstrap.requests import (
    Cuts,
    cut_into_requests,
    impressions,
    positive_events,
    refuse_without_training,
    time_cuts,
    without_unknown_conditions,
)
from clrflow.bootstrap.serve import ask_conditions, ask_generators, sample_held_out
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.bootstrap.statistics import item_statistics
from clrflow.bootstrap.view import Site, lay_out
from clrflow.contracts import CANDIDATES, ITEM_STATISTICS
from clrflow.data.settings import DataSettings
from clrflow.data.tables import write_file, write_table
from clrflow.errors import DataError
from clrflow.manifest import Output
from clrflow.progress import say
from clrflow.steps import StepContext, StepResult

INPUTS = ("events", "items", "boards", "user_interests", "interests")


def run(context: StepContext) -> StepResult:
    """Read validate_data's tables, write requests, candidates, item_statistics and user_states below the step's folder."""
    cleaned, settings = context.inputs["validate_data"], context.config.bootstrap
    sources = {name: cleaned.output(name) for name in (*INPUTS, "days")}
    local = storage.local_path(context.folder) if storage.is_local(context.folder) else None
    scratch = local if settings.engine == "duckdb" else settings.spark.scratch or context.place("scratch")
    steps = storage.join(context.workspace, "steps", "bootstrap")
    earlier = [storage.join(folder, "tables") for folder in reversed(storage.list_folders(steps)) if folder != context.folder]
    with connect(settings, scratch) as engine:
        outputs, quality = bootstrap(engine, sources, settings, context.config.data, context.place("tables"), earlier)
    return StepResult(outputs=outputs, report=render(quality, settings), metrics=quality.metrics(), facts=quality.facts())


def bootstrap(
    engine: Engine,
    sources: Mapping[str, str],
    settings: BootstrapSettings,
    data: DataSettings,
    folder: str,
    earlier: Sequence[str] = (),
) -> tuple[dict[str, Output], Quality]:
    """The step without its context.

    `sources` are the URIs of the cleaned tables and of validate_data's `days` (without which every day is built), `folder` is where its own
    tables are written, `earlier` are folders of earlier runs' tables. Raises DataError when the split leaves nothing to train on.
    """
    tables = {name: engine.parquet(name, sources[name]) for name in INPUTS}
    positives = without_unknown_conditions(positive_events(tables["events"], data.actions), tables["items"])
    cuts = time_cuts(engine, positives, settings.split)
    engagements, requests = cut_into_requests(
        engine, positives, request=settings.request, split=settings.split, cuts=cuts, period_s=period_seconds(settings.granularity_days)
    )
    refuse_without_training(engine, requests, settings.split, cuts)
    say(f"bootstrap: {engine.value(engagements.count()):,} engagements in {engine.value(requests.count()):,} requests")
    days = days_of(
        engine, days_uri=sources.get("days", ""), events=tables["events"], items=tables["items"], requests=requests, cuts=cuts,
        settings=settings, data=data,
    )  # fmt: skip
    if not days:
        raise DataError(
            f"bootstrap.lookback_days={settings.lookback_days} leaves no day that has so many before it in the window of "
            f"data.window_days={data.window_days}; lower the lookback, or widen the window."
        )
    built = take_over(days, folder, earlier)
    if built.taken_over:
        say(f"bootstrap: {len(built.taken_over):,} of {len(days):,} days were built by an earlier run from the same inputs")
    generators = enabled_generators(settings)
    site = lay_out(engine, settings, tables, sources["items"], engagements=engagements, requests=requests, cuts=cuts)
    missing = [day for day in days if day.number not in built.figures]
    figures = dict(built.figures)
    for chunk in _chunks(engine, requests, missing):
        figures |= _build(site, generators, data, cuts, chunk, [day.number for day in days], folder)
    if not any(one.lists for one in figures.values()):  # no generator has anything for the held-out requests; a table has one file at least
        write_file(storage.join(folder, "candidates", "part-00000.parquet"), CANDIDATES.empty_table(), CANDIDATES)
    num_users = _write_user_states(site, generators, storage.join(folder, "user_states"))

    statistics = engine.arrow(item_statistics(tables["items"], engagements.filter(engagements.day.isin([day.number for day in days]))))
    place = {name: storage.join(folder, name) for name in ("requests", "candidates", "user_states")}
    whole: DayFigures = add(figures.values(), DayFigures)
    outputs = {
        "requests": Output.of(place["requests"], num_rows=whole.sizes.requests),
        "candidates": Output.of(place["candidates"], num_rows=sum(whole.lists.values())),
        "item_statistics": write_table(storage.join(folder, "item_statistics"), statistics, ITEM_STATISTICS),
        "user_states": Output.of(place["user_states"], num_rows=num_users),
    }
    names = {day.number: day.name for day in days}
    quality = measure(
        engine, generators, engagements=engagements, figures=whole, days=list(names), taken_over=[names[number] for number in built.taken_over]
    )  # fmt: skip
    return outputs, quality


def _chunks(engine: Engine, requests: Table, days: Sequence[Day]) -> list[list[Day]]:
    """The days in order, in groups of at most engine.max_requests requests or of one day."""
    numbers = [day.number for day in days]
    mine = _of_days(requests, numbers)
    counts = engine.arrow(mine.group_by("day").aggregate(n=mine.count())).to_pylist() if days else []
    sizes = {row["day"]: row["n"] for row in counts}
    spans = spans_of(sizes, engine.max_requests or sum(sizes.values()))
    return [[day for day in days if low <= day.number <= high] for low, high in spans]


def _build(
    site: Site, generators: Sequence[Generator], data: DataSettings, cuts: Cuts, chunk: Sequence[Day], all_days: list[int], folder: str
) -> dict[int, DayFigures]:
    """Build and mark the days of a chunk."""
    engine, settings = site.engine, site.settings
    numbers = [day.number for day in chunk]
    say(f"bootstrap: building {chunk[0].name}" + (f" to {chunk[-1].name}" if len(chunk) > 1 else ""))
    requests = engine.keep("chunk_requests", _of_days(site.requests, numbers))
    engagements = engine.keep("chunk_engagements", _of_days(site.engagements, numbers))
    events = site.events
    if settings.request.session_gap_minutes is not None:  # else a request may hold what happened on later days
        first, last = (datetime.datetime.fromtimestamp(day * DAY_SECONDS, datetime.UTC) for day in (min(numbers), max(numbers) + 1))
        events = events.filter((events.timestamp >= first) & (events.timestamp < last))  # nearly all are left out by comparing alone
        events = events.filter(day_of(events.timestamp).isin(numbers))
    gap = settings.request.session_gap_minutes
    shown = engine.keep("impressions", impressions(events, engagements, data.actions, gap_minutes=gap, cuts=cuts))
    sampled = engine.once(
        "sampled_requests", lambda: sample_held_out(engine, _of_days(site.requests, all_days), settings.max_candidate_requests)
    )
    sampled = sampled.semi_join(requests, "request_id")
    view = site.requests_view(requests)
    served = ask_generators(view, generators, engagements, sampled)
    found = attribute(view, served, engagements)
    drop_scratch(engine)
    sizes = write_requests(view, generators, engagements, found, shown, storage.join(folder, "requests"))
    lists = write_candidates(view, served, sampled, storage.join(folder, "candidates"))
    figures = figures_by_day(
        engine, served, targets=found.targets, engagements=engagements, shown=shown, sampled=sampled, sizes=sizes, lists=lists
    )  # fmt: skip
    for day in chunk:
        mark(day, folder, figures[day.number])
    return figures


def _write_user_states(site: Site, generators: Sequence[Generator], folder: str) -> int:
    """Every user as of the end of the data; returns their number."""
    storage.remove(folder)
    engine = site.engine
    view = site.end_view()
    known = engine.keep("known_conditions", known_conditions(ask_conditions(view, generators)))
    return write_user_states(view, generators, known, folder)


def _of_days(table: Table, numbers: Sequence[int]) -> Table:
    return table.filter(table.day.isin(list(numbers)))
