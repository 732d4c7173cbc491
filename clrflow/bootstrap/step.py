"""The bootstrap step: clean events in, request-level training data out.

requests.py cuts and splits, view.py says what was known when, generators/ name conditions and candidates, serve.py asks them, attribution.py
joins engagements to conditions, dataset.py nests and writes.
"""

from __future__ import annotations

from collections.abc import Mapping

from clrflow import storage
from clrflow.bootstrap.attribution import attribute, drop_scratch
from clrflow.bootstrap.dataset import candidate_tables, request_tables, user_state_tables
from clrflow.bootstrap.engine import Engine, period_seconds
from clrflow.bootstrap.generators import enabled_generators
from clrflow.bootstrap.quality import Quality, measure
from clrflow.bootstrap.report import render
from clrflow.bootstrap.requests import (
    cut_into_requests,
    impressions,
    positive_events,
    refuse_without_training,
    time_cuts,
    without_unknown_conditions,
)
from clrflow.bootstrap.serve import ask_generators, sample_held_out
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.bootstrap.statistics import item_statistics
from clrflow.bootstrap.view import build_view
from clrflow.contracts import CANDIDATES, ITEM_STATISTICS, REQUESTS, USER_STATES
from clrflow.data.settings import DataSettings
from clrflow.data.tables import write_table
from clrflow.manifest import Output
from clrflow.progress import say
from clrflow.steps import StepContext, StepResult

INPUTS = ("events", "items", "boards", "user_interests", "interests")
ROWS_PER_GROUP = 1024
"""Requests of a row group: rows are wide, and a reader holds whole groups."""


def run(context: StepContext) -> StepResult:
    """Read validate_data's tables, write requests, candidates, item_statistics and user_states below the step's folder."""
    cleaned = context.inputs["validate_data"]
    scratch = storage.local_path(context.folder) if storage.is_local(context.folder) else None
    with Engine(memory_limit=context.config.bootstrap.memory_limit, scratch=scratch) as engine:
        sources = {name: cleaned.output(name) for name in INPUTS}
        outputs, quality = bootstrap(engine, sources, context.config.bootstrap, context.config.data, context.folder)
    report = render(quality, context.config.bootstrap)
    return StepResult(outputs=outputs, report=report, metrics=quality.metrics(), facts=quality.facts())


def bootstrap(
    engine: Engine, sources: Mapping[str, str], settings: BootstrapSettings, data: DataSettings, folder: str
) -> tuple[dict[str, Output], Quality]:
    """The step without its context: `sources` are the URIs of the cleaned tables, `folder` is where its own are written.

    Raises DataError when the split leaves nothing to train on.
    """
    tables = {name: engine.parquet(name, uri) for name, uri in sources.items()}
    positives = without_unknown_conditions(positive_events(tables["events"], data.actions), tables["items"])
    cuts = time_cuts(engine, positives, settings.split)
    engagements, requests = cut_into_requests(
        engine, positives, request=settings.request, split=settings.split, cuts=cuts, period_s=period_seconds(settings.granularity_days)
    )
    refuse_without_training(engine, requests, settings.split, cuts)
    say(f"bootstrap: {engine.value(engagements.count()):,} engagements in {engine.value(requests.count()):,} requests")
    shown = impressions(tables["events"], engagements, requests, data.actions, gap_minutes=settings.request.session_gap_minutes, cuts=cuts)
    shown = engine.keep("impressions", shown)
    view = build_view(
        engine,
        settings,
        engagements=engagements,
        requests=requests,
        items=tables["items"],
        boards=tables["boards"],
        user_interests=tables["user_interests"],
        cuts=cuts,
    )
    generators = enabled_generators(settings)
    sampled = sample_held_out(engine, requests, settings.max_candidate_requests)
    served = ask_generators(view, generators, engagements, sampled)
    found = attribute(view, served, engagements)
    drop_scratch(engine)

    place = {name: storage.join(folder, "tables", name) for name in ("requests", "candidates", "item_statistics", "user_states")}
    outputs: dict[str, Output] = {
        "requests": write_table(
            place["requests"],
            request_tables(view, generators, requests, engagements, found, shown),
            REQUESTS,
            rows_per_group=ROWS_PER_GROUP,
            rows_per_file=16 * ROWS_PER_GROUP,
        ),
        "candidates": write_table(
            place["candidates"], candidate_tables(view, served, sampled), CANDIDATES, rows_per_group=4 * ROWS_PER_GROUP
        ),
        "item_statistics": write_table(
            place["item_statistics"], engine.arrow(item_statistics(tables["items"], engagements)), ITEM_STATISTICS
        ),
        "user_states": write_table(
            place["user_states"], user_state_tables(view, generators, engagements, found), USER_STATES, rows_per_group=ROWS_PER_GROUP
        ),
    }
    quality = measure(
        engine,
        generators,
        served=served,
        targets=found.targets,
        requests=requests,
        engagements=engagements,
        shown=shown,
        sampled=sampled,
        requests_uri=outputs["requests"].uri,
    )
    return outputs, quality
