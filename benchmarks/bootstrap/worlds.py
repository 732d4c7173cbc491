"""The data sets of the benchmark, as saved runs of the pipeline: synthetic logs of any size, MovieLens-100k, movielens-boards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bootstrap.processes import Measured, measured
from clrflow import storage
from clrflow.config import load_config
from clrflow.steps import Run

ROOT = Path(os.environ.get("CLRFLOW_BENCH_WORKSPACE", "demo/bench-bootstrap")).absolute()
"""Tables and results lie here; figures that were measured stay and are found again."""

DAYS, SEED = 20, 5
ROWS_A_USER = 117
"""Events of a synthetic user: 39 engagements and two impressions beside each."""
DEEP = tuple(f"bootstrap.{kind}.num_candidates=500" for kind in ("interest", "item", "board"))


def figures(job: str, **arguments: Any) -> Measured:
    """A job in its own process; see processes.measured."""
    return measured(job, ROOT, arguments)


def synthetic(events: int, items: int) -> str:
    """Folder of the raw tables of about so many events."""
    folder = ROOT / f"synthetic-{events}-{items}"
    figures("generate", folder=str(folder), users=max(1, events // ROWS_A_USER), items=items, days=DAYS, seed=SEED)
    return str(folder)


def saved_run(name: str, tables: str, preset: str, overrides: Sequence[str] = ()) -> str:
    """URI of a saved run over tables; every run has a workspace of its own, so none finds another's results."""
    config = load_config(preset, overrides=[f"data.tables={tables}", *overrides])
    key = storage.fingerprint_of(preset, tables, list(overrides))[:8]
    return Run(name=f"{name}-{key}", workspace=str(ROOT / "workspaces" / f"{name}-{key}"), config=config).save()


def validated(run: str) -> Measured:
    """The step validate_data of a run."""
    return figures("validate", run=run)


def bootstrapped(run: str, cleaned: Measured) -> Measured:
    """The step bootstrap of a run."""
    return figures("clrflow", run=run, validated=cleaned.facts["uri"])
