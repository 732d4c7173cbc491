"""The data sets of the benchmark, as saved runs of the pipeline: synthetic logs of any size, MovieLens-100k, movielens-boards."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bootstrap import movielens_boards
from benchmarks.processes import Jobs, Measured, measured
from clrflow import storage
from clrflow.config import load_config
from clrflow.data import movielens
from clrflow.errors import BadInput
from clrflow.progress import say
from clrflow.steps import Run

ROOT = Path(os.environ.get("CLRFLOW_BENCH_WORKSPACE", "demo/bench-bootstrap")).absolute()
"""Tables and results lie here; figures that were measured stay and are found again."""

JOBS = Jobs(
    module="benchmarks.bootstrap.jobs",
    code=("clrflow/data", "clrflow/bootstrap", "benchmarks/bootstrap"),
    packages=("duckdb", "ibis-framework", "pandas", "polars", "pyarrow", "pyspark"),
)
DAYS, SEED = 20, 5
ROWS_A_USER = 117
"""Events of a synthetic user: 39 engagements and two impressions beside each."""
QUALITY = (200_000, 20_000)
"""Events and items of the synthetic log on which the generators are judged."""
BOARDS_SETTINGS = ("data.actions=[{name: tag}]", "bootstrap.interest.max_conditions=8")
LOCAL_SPARK = (
    "{spark.sql.shuffle.partitions: '4', spark.driver.memory: 4g, spark.driver.bindAddress: 127.0.0.1, spark.driver.host: 127.0.0.1}"
)
ON_SPARK = ("bootstrap.engine=spark", "bootstrap.spark.master=local[2]", f"bootstrap.spark.conf={LOCAL_SPARK}")
DEEP = tuple(f"bootstrap.{kind}.num_candidates=500" for kind in ("interest", "item", "board"))


def figures(job: str, **arguments: Any) -> Measured:
    """A job in its own process; see processes.measured. Peers have a thread a core in numpy's products of matrices; ours makes its own."""
    return measured(JOBS, job, ROOT, arguments, threads=len(os.sched_getaffinity(0)) if job in ("pandas", "polars") else 1)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSet:
    """Raw tables with the settings that suit them."""

    name: str
    tables: str
    missing: str = ""
    """Why the data can't be had here; "" where they are."""
    preset: str = "demo"
    overrides: tuple[str, ...] = ()

    def run(self, *more: str) -> str:
        """URI of a saved run with candidate lists of 500."""
        return saved_run(f"{self.name}-deep", self.tables, self.preset, (*self.overrides, *DEEP, *more))


def data_sets() -> list[DataSet]:
    """The logs on which generators are judged and engines compared."""
    found = [DataSet(name="synthetic", tables=synthetic(*QUALITY), preset="small")]
    for name, prepare, overrides in (
        ("movielens-100k", movielens.prepare, ()),
        ("movielens-boards", movielens_boards.prepare, BOARDS_SETTINGS),
    ):
        tables, missing = prepared(name, prepare)
        found.append(DataSet(name=name, tables=tables, missing=missing, overrides=overrides))
    return found


def prepared(name: str, prepare: Callable[[str], Any]) -> tuple[str, str]:
    """Folder of a data set and "", or "" and why it can't be had here."""
    folder = str(ROOT / name)
    try:
        prepare(folder)
    except BadInput as error:
        say(f"{name}: left out: {error}")
        return "", str(error).splitlines()[0]
    return folder, ""


def without_spark() -> str:
    """Why Spark can't run here; "" where it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark, which isn't installed (the extra clrflow[spark])"
    return "" if shutil.which("java") else "Java on PATH"
