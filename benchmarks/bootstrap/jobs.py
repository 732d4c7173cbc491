"""What runs in processes of their own; benchmarks/job.py says what a job is."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from typing import Any


def generate(folder: str, **sizes: Any) -> dict[str, Any]:
    """The raw tables of a synthetic log."""
    from clrflow.data.synthetic import generate as make

    marker = make(folder, **sizes)
    return {"rows": {name: table["num_rows"] for name, table in marker["tables"].items()}}


def validate(run: str) -> dict[str, Any]:
    """The step validate_data of a saved run, done anew."""
    return _step("validate_data", run, {})


def clrflow(run: str, validated: str) -> dict[str, Any]:
    """The step bootstrap of a saved run, done anew: what a pipeline does, its report and figures included."""
    return _step("bootstrap", run, {"validate_data": validated})


def _step(name: str, run: str, inputs: dict[str, str]) -> dict[str, Any]:
    from clrflow import storage
    from clrflow.steps import STEPS, Run, execute

    importlib.import_module(STEPS[name].code.partition(":")[0])  # imports are no work of the step's
    # Its earlier results, by other code or of a killed attempt, would be found or linked instead of being made.
    storage.remove(storage.join(Run.load(run).workspace, "steps", name))
    started = time.monotonic()
    manifest = execute(name, run, inputs).manifest
    seconds = time.monotonic() - started
    tables = {table: output.uri for table, output in manifest.outputs.items()}
    sizes = {table: output.num_bytes for table, output in manifest.outputs.items()}
    rows = {table: output.num_rows for table, output in manifest.outputs.items()}
    return {"seconds": seconds, "uri": manifest.uri, "tables": tables, "bytes": sizes, "rows": rows, "facts": manifest.facts}


def pandas(run: str, validated: str, folder: str, lists_at_once: int | None = None) -> dict[str, Any]:
    """The same tables by pandas."""
    from benchmarks.bootstrap.by_pandas.step import ALL, bootstrap

    return _peer(functools.partial(bootstrap, lists_at_once=lists_at_once or ALL), run, validated, folder)


def polars(run: str, validated: str, folder: str) -> dict[str, Any]:
    """The same tables by Polars."""
    from benchmarks.bootstrap.by_polars.step import bootstrap

    return _peer(bootstrap, run, validated, folder)


def _peer(bootstrap: Callable[..., Any], run: str, validated: str, folder: str) -> dict[str, Any]:
    from clrflow.manifest import Manifest
    from clrflow.steps import Run

    config, cleaned = Run.load(run).config, Manifest.load(validated)
    sources = {name: output.uri for name, output in cleaned.outputs.items()}
    started = time.monotonic()
    outputs = bootstrap(sources, config.bootstrap, config.data, folder)
    return {"seconds": time.monotonic() - started, "tables": {name: output.uri for name, output in outputs.items()}}


def count(events: str, requests: str, positive: list[str]) -> dict[str, Any]:
    """Engagements in the clean events and in the written requests, counted by other code than the step's."""
    from benchmarks.bootstrap.counting import engagements_in, engagements_out

    return {"engagements_in": engagements_in(events, positive), "engagements_out": engagements_out(requests)}


def pairs(requests: str, folder: str) -> dict[str, Any]:
    """Bytes of requests and of the pairs that they stand for."""
    from benchmarks.bootstrap.counting import weigh_pairs

    return weigh_pairs(requests, folder)


def heuristics(items: str, requests: str, candidates: str) -> dict[str, Any]:
    """Recall of the generators and what explains the engagements."""
    from benchmarks.bootstrap.heuristics import explained, recall

    return {"recall": recall(items, requests, candidates), "explained": explained(requests)}


def ours_co_engagement(run: str, tables: str) -> dict[str, Any]:
    """The item generator's graph and lists by its Ibis expressions."""
    from benchmarks.bootstrap.co_engagement import by_generator
    from clrflow.steps import Run

    return by_generator(Run.load(run).config.bootstrap, tables)


def sql_co_engagement(run: str, tables: str) -> dict[str, Any]:
    """The same by hand-written SQL."""
    from benchmarks.bootstrap.co_engagement import by_hand
    from clrflow.steps import Run

    return by_hand(Run.load(run).config.bootstrap, tables)


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    job.__name__: job
    for job in (generate, validate, clrflow, pandas, polars, count, pairs, heuristics, ours_co_engagement, sql_co_engagement)
}
