"""All rows and claims of the benchmark in one run; see the package's docstring. Events are rows of the log, impressions included."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from benchmarks.bootstrap.heuristics import DEPTH
from benchmarks.bootstrap.worlds import (
    ON_SPARK,
    ROOT,
    bootstrapped,
    data_sets,
    figures,
    prepared,
    saved_run,
    synthetic,
    validated,
    without_spark,
)
from benchmarks.harness import FULL, Claim, Result, Row, main, not_measured
from benchmarks.processes import Measured, need_disk
from clrflow import storage
from clrflow.bootstrap.duckdb_engine import LISTS_AT_ONCE
from clrflow.data import movielens
from clrflow.data.tables import read_table
from clrflow.progress import say

M = 1_000_000
ITEMS = M
SCALES = {"small": (M // 5, M), FULL: (M, 10 * M, 100 * M)}
COMPARED = M
"""Events on which the peers run."""
COMPARED_MEMORY = "250MB"
"""What DuckDB may take there: it fills what it is given, and at 1 M events more brings no speed (tried: 350MB and 500MB)."""
MEMORY_GB = 6.0
SCALE_MEMORY = "3GB"
"""What DuckDB may take while the log grows: half of MEMORY_GB, as numpy and Arrow work beside it."""
TABLES = ("requests", "candidates", "item_statistics", "user_states")
POSITIVE = ["click", "save"]

Found = tuple[Sequence[Row], list[Claim]]


def measure(size: str) -> Result:
    """Every part's rows and claims."""
    rows: list[Row] = []
    claims: list[Claim] = []
    for found, claimed in (peers(size), co_engagement(), scale(size), pairs(), quality(), engines()):
        rows += found
        claims += claimed
    return Result(rows=rows, claims=claims)


def _compared() -> tuple[str, Measured, Measured]:
    run = saved_run("synthetic", synthetic(COMPARED, ITEMS), "small", (f"bootstrap.memory_limit={COMPARED_MEMORY}",))
    cleaned = validated(run)
    return run, cleaned, bootstrapped(run, cleaned)


def peers(size: str) -> Found:
    """Ours, pandas and Polars on the same clean tables; at full also pandas with all lists at once, which takes as long and more memory."""
    run, cleaned, ours = _compared()
    given = {"run": run, "validated": cleaned.facts["uri"]}
    found = {
        "clrflow": ours,
        "pandas": figures("pandas", **given, folder=str(ROOT / "pandas"), lists_at_once=LISTS_AT_ONCE),
        "polars": figures("polars", **given, folder=str(ROOT / "polars")),
    }
    if size == FULL:
        found["pandas, all lists at once"] = figures("pandas", **given, folder=str(ROOT / "pandas-at-once"))
    num_events = cleaned.facts["facts"]["num_events"]
    rows = [
        {
            "part": "peers", "what": name, "events": num_events, "seconds": one.seconds, "CPU s": one.cpu_seconds,
            "µs an event": one.seconds / num_events * 1e6, "peak GB": one.peak_gb,
            "rows unlike ours": 0 if one is ours else sum(_differences(ours, one).values()),
        }
        for name, one in found.items()
    ]  # fmt: skip
    faster = found["pandas"].seconds / ours.seconds
    share = ours.peak_bytes / found["pandas"].peak_bytes
    unlike = sum(int(row["rows unlike ours"]) for row in rows)
    return rows, [
        Claim(name="rows in which pandas' and Polars' tables differ from ours", goal="0", value=unlike, holds=unlike == 0),
        Claim(name="time of pandas over ours at 1 M events", goal="≥ 4", value=faster, holds=faster >= 4),
        Claim(name="our peak memory over that of pandas", goal="≤ 1/3", value=share, holds=share <= 1 / 3),
    ]


def _differences(ours: Measured, other: Measured) -> dict[str, int]:
    """Rows of each table that aren't equal at the same place."""
    return {name: differing(read_table(ours.facts["tables"][name]), read_table(other.facts["tables"][name])) for name in TABLES}


def differing(one: pa.Table, other: pa.Table) -> int:
    """Rows of two tables of one schema that aren't equal at the same place; rows that only one of them has count."""
    common = min(len(one), len(other))
    unlike = abs(len(one) - len(other))
    for start in range(0, common, 1024):
        left, right = (table.slice(start, min(1024, common - start)) for table in (one, other))
        if not left.equals(right):
            unlike += sum(a != b for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True))
    return unlike


def co_engagement() -> Found:
    """The generator's expressions against SQL by hand."""
    run, _, ours = _compared()
    requests = ours.facts["tables"]["requests"]
    found = {"ibis": figures("ours_co_engagement", run=run, tables=requests), "sql": figures("sql_co_engagement", run=run, tables=requests)}
    rows = [
        {
            "part": "co-engagement",
            "what": name,
            "events": COMPARED,
            "seconds": one.seconds,
            "peak GB": one.peak_gb,
            "lists": one.facts["lists"],
        }
        for name, one in found.items()
    ]
    ratio = found["ibis"].seconds / found["sql"].seconds
    alike = found["ibis"].facts["checksum"] == found["sql"].facts["checksum"]
    return rows, [
        Claim(name="co-engagement lists equal those of hand-written SQL", goal="1", value=float(alike), holds=alike),
        Claim(name="time of co-engagement over hand-written SQL", goal="≤ 1.3", value=ratio, holds=ratio <= 1.3),
    ]


def scale(size: str) -> Found:
    """A growing log over one catalogue: time per event, memory, and every engagement counted in and out."""
    rows: list[dict[str, Any]] = []
    for events in SCALES[size]:
        if rows:  # what the smaller log took, in proportion: too much rather than too little
            need_disk(ROOT, rows[-1]["disk GB"] * 1e9 * events / rows[-1]["events"], f"a log of {events:,} events")
        run = saved_run("synthetic", synthetic(events, ITEMS), "small", (f"bootstrap.memory_limit={SCALE_MEMORY}",))
        cleaned = validated(run)
        ours = bootstrapped(run, cleaned)
        counted = figures(
            "count",
            events=cleaned.facts["tables"]["events"],
            requests=ours.facts["tables"]["requests"],
            positive=POSITIVE,
        ).facts
        facts = cleaned.facts["facts"]
        rows.append(
            {
                "part": "scale", "what": f"{events:,} events", "events": facts["num_events"], "users": facts["num_users"],
                "seconds": ours.seconds, "µs an event": ours.seconds / facts["num_events"] * 1e6, "peak GB": ours.peak_gb,
                "validate s": cleaned.seconds, "validate peak GB": cleaned.peak_gb,
                "disk GB": (cleaned.disk_bytes + ours.disk_bytes) / 1e9,
                "bytes an event": sum(ours.facts["bytes"].values()) / facts["num_events"],
                "engagements": counted["engagements_in"], "lost": counted["engagements_in"] - counted["engagements_out"],
            }
        )  # fmt: skip
    peak = max(max(row["peak GB"], row["validate peak GB"]) for row in rows)
    lost = sum(abs(row["lost"]) for row in rows)
    names = ("time per event from 10 M to 100 M events", "time per event from 1 M to 10 M events", "peak memory at 100 M events, GB")
    claims = [Claim(name="engagements lost between clean events and requests", goal="0", value=lost, holds=lost == 0)]
    if size == FULL:
        growths = [after["µs an event"] / before["µs an event"] for before, after in itertools.pairwise(rows)]
        for name, growth in zip(names[1::-1], growths, strict=False):
            claims.append(Claim(name=name, goal="≤ 1.3", value=growth, holds=growth <= 1.3, needs=FULL))
        claims.append(Claim(name=names[2], goal=f"< {MEMORY_GB:g}", value=peak, holds=peak < MEMORY_GB, needs=FULL))
    else:
        claims += [not_measured(name, "≤ 1.3") for name in names[1::-1]]
        claims.append(not_measured(names[2], f"< {MEMORY_GB:g}"))
        claims.append(Claim(name="peak memory at 1 M events, GB", goal=f"< {MEMORY_GB:g}", value=peak, holds=peak < MEMORY_GB))
    return rows, claims


def pairs() -> Found:
    """Bytes of the requests against bytes of the pairs that they stand for."""
    _, _, ours = _compared()
    sets = {"synthetic": ours.facts["tables"]["requests"]}
    tables, missing = prepared("movielens-100k", movielens.prepare)
    if not missing:
        run = saved_run("movielens-100k", tables, "demo")
        sets["movielens-100k"] = bootstrapped(run, validated(run)).facts["tables"]["requests"]
    rows = []
    for name, requests in sets.items():
        weights = figures("pairs", requests=requests, folder=str(ROOT / "pairs")).facts
        rows.append(
            {
                "part": "pairs", "what": name, "requests": weights["requests"], "pairs": weights["pairs"],
                "request MB": weights["request_arrow"] / 1e6, "pair MB": weights["pair_arrow"] / 1e6,
                "bytes of pairs over requests: in Arrow": weights["pair_arrow"] / weights["request_arrow"],
                "in files": weights["pair_files"] / storage.size_bytes(requests),
                "in files, pairs shuffled": weights["shuffled_pair_files"] / storage.size_bytes(requests),
            }
        )  # fmt: skip
    claims = []
    for row in rows:
        saved = row["bytes of pairs over requests: in Arrow"]
        name = f"Arrow bytes of the pairs over those of the requests, {row['what']}"
        claims.append(Claim(name=name, goal="≥ 10", value=saved, holds=saved >= 10))
    if missing:
        name = "Arrow bytes of the pairs over those of the requests, movielens-100k"
        claims.append(Claim(name=name, goal="≥ 10", value=None, holds=None, needs="MovieLens-100k, which can't be had here"))
    return rows, claims


def quality() -> Found:
    """Recall of the next engagement by generator, and what explains engagements, with lists of 500."""
    rows: list[Row] = []
    for one in data_sets():
        if one.missing:
            rows.append({"part": "quality", "what": f"{one.name}: skipped, {one.missing}"})
            continue
        run = one.run()
        cleaned = validated(run)
        written = bootstrapped(run, cleaned).facts["tables"]
        items = cleaned.facts["tables"]["items"]
        found = figures("heuristics", items=items, requests=written["requests"], candidates=written["candidates"]).facts
        shares = found["explained"]
        rows.append(
            {
                "part": "quality", "what": one.name, "held-out requests": found["recall"].pop("requests"), "engagements": shares.pop("engagements"),
                **{f"{generator} recall@{DEPTH}": value for generator, value in found["recall"].items()},
                **{f"share by {source}": value for source, value in shares.items()},
            }
        )  # fmt: skip
    return rows, []


def engines() -> Found:
    """DuckDB and Spark on the same clean tables of all data sets: equal rows."""
    name, reason = "rows in which Spark's tables differ from DuckDB's", without_spark()
    if reason:
        say(f"Spark: left out: {reason}")
        return [{"part": "engines", "what": f"skipped, {reason}"}], [Claim(name=name, goal="0", value=None, holds=None, needs=reason)]
    rows: list[Row] = []
    for one in data_sets():
        if one.missing:
            rows.append({"part": "engines", "what": f"{one.name}: skipped, {one.missing}"})
            continue
        cleaned = validated(one.run())
        duckdb, spark = bootstrapped(one.run(), cleaned), bootstrapped(one.run(*ON_SPARK), cleaned)
        unlike = _differences(duckdb, spark)
        for engine, found in (("duckdb", duckdb), ("spark", spark)):
            rows.append(
                {
                    "part": "engines", "what": one.name, "engine": engine, "requests": found.facts["rows"]["requests"],
                    "lists": found.facts["rows"]["candidates"], "seconds": found.seconds, "peak GB": found.peak_gb,
                    "rows unlike DuckDB's": sum(unlike.values()) if found is spark else 0,
                }
            )  # fmt: skip
    unlike_rows = sum(row.get("rows unlike DuckDB's", 0) for row in rows)
    return rows, [Claim(name=name, goal="0", value=unlike_rows, holds=unlike_rows == 0)]


if __name__ == "__main__":
    # Asked to stop, it ends its job first: that one is in a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main("bootstrap", measure))
