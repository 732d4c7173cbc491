"""Figures that add up: of a bucket's file, of a day. What one day's rows say is written beside them and summed over the days of a result."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clrflow.bootstrap.engine import Engine
from clrflow.bootstrap.expressions import REQUEST_BITS, ROW_BITS, Table
from clrflow.bootstrap.serve import Served
from clrflow.contracts import ATTRIBUTED, FALLBACK, LOGGED

Counts = dict[str, int]


@dataclasses.dataclass(kw_only=True)
class Sizes:
    """What written requests hold and weigh.

    Pairs have a row for each target with the user, the history, the one condition and the target: what training reads where requests aren't
    kept together.
    """

    requests: int = 0
    engagements: int = 0
    pairs: int = 0
    request_bytes: int = 0
    """As Arrow holds them."""
    pair_bytes: int = 0
    file_bytes: int = 0
    by_targets: Counts = dataclasses.field(default_factory=dict)
    """Requests by number of engagements."""
    by_history: Counts = dataclasses.field(default_factory=dict)
    """Requests by floor(log2(length of the history + 1))."""


@dataclasses.dataclass(kw_only=True)
class DayFigures:
    """A day's share in the step's figures."""

    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    impressions: int = 0
    listed_requests: int = 0
    sources: Counts = dataclasses.field(default_factory=dict)
    """Target rows by `split source`."""
    explained: Counts = dataclasses.field(default_factory=dict)
    """Engagements by logged, attributed or fallback."""
    conditions: Counts = dataclasses.field(default_factory=dict)
    """Known conditions of requests by generator."""
    conditioned: Counts = dataclasses.field(default_factory=dict)
    """Requests that have a condition of the generator."""
    lists: Counts = dataclasses.field(default_factory=dict)
    """Kept candidate lists by generator; their items in `listed`."""
    listed: Counts = dataclasses.field(default_factory=dict)
    ranks: Counts = dataclasses.field(default_factory=dict)
    """Engagements by `generator split rank`, the best rank at which the generator held them."""

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> DayFigures:
        return cls(**{**raw, "sizes": Sizes(**raw["sizes"])})


def add(parts: Iterable[Any], kind: type[Any]) -> Any:
    """The sum of dataclasses of one kind, field by field."""
    listed = list(parts)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        found = [getattr(part, field.name) for part in listed]
        if field.name == "sizes":
            values[field.name] = add(found, Sizes)
        elif found and isinstance(found[0], dict):
            summed: Counter[str] = Counter()
            for one in found:
                summed.update(one)
            values[field.name] = dict(sorted(summed.items()))
        elif found:
            values[field.name] = sum(found)
    return kind(**values)


def weigh(table: pa.Table, file_bytes: int) -> Sizes:
    """Of a nested table of requests; `file_bytes` is the size of its file."""
    if not len(table):
        return Sizes(file_bytes=file_bytes)
    columns = {name: pa.concat_arrays(table.column(name).chunks) for name in table.column_names}
    num_targets = pc.list_value_length(columns["targets"]).to_numpy().astype(np.int64)
    history = pc.list_value_length(columns["history_items"]).to_numpy().astype(np.int64)
    flat = columns["targets"].flatten()
    unconditional = pc.equal(pc.struct_field(flat, "condition"), -1)
    owners = np.repeat(np.arange(len(table)), num_targets)[unconditional.to_numpy(zero_copy_only=False)]
    engaged = np.bincount(owners, minlength=len(table))
    elements = max(int(history.sum()), 1)
    of_event = sum(columns[f"history_{part}"].flatten().nbytes for part in ("items", "actions", "times")) / elements
    conditions = columns["conditions"].flatten()
    of_condition = conditions.nbytes / max(len(conditions), 1)
    of_user = sum(columns[name].nbytes for name in ("request_id", "user_id", "requested_at", "split")) / len(table)
    pairs_of_history = float((num_targets * history).sum()) * of_event
    return Sizes(
        requests=len(table),
        engagements=len(owners),
        pairs=len(flat),
        request_bytes=sum(column.nbytes for column in columns.values()),
        pair_bytes=int(pairs_of_history + (len(flat) - len(owners)) * of_condition + len(flat) * of_user + flat.nbytes),
        file_bytes=file_bytes,
        by_targets=_histogram(engaged),
        by_history=_histogram(np.floor(np.log2(history + 1)).astype(np.int64)),
    )


def _histogram(values: np.ndarray) -> Counts:
    found, counts = np.unique(values, return_counts=True)
    return {str(value): int(count) for value, count in zip(found.tolist(), counts.tolist(), strict=True)}


def figures_by_day(
    engine: Engine,
    served: Served,
    *,
    targets: Table,
    engagements: Table,
    shown: Table,
    sampled: Table,
    sizes: Mapping[int, Sizes],
    lists: Mapping[int, Mapping[str, tuple[int, int]]],
) -> dict[int, DayFigures]:
    """Of every day that `sizes` has, from what the engine keeps of those days; `lists` are NestCandidates' results, added up."""
    days = {day: DayFigures(sizes=one) for day, one in sizes.items()}
    for day, found in lists.items():
        days[day].lists = {name: num for name, (num, _) in found.items()}
        days[day].listed = {name: items for name, (_, items) in found.items()}

    def count(field: str, table: Table, number: str, *by: str) -> None:
        per_day = REQUEST_BITS if number != "row" else ROW_BITS
        rows = table.mutate(of_day=(table[number] // 2**per_day).cast("int64"))
        for row in engine.arrow(rows.group_by(["of_day", *by]).aggregate(n=rows.count())).to_pylist():
            figures = days[row["of_day"]]
            if by:
                getattr(figures, field)[" ".join(str(row[name]) for name in by)] = row["n"]
            else:
                setattr(figures, field, row["n"])

    splits = engagements.select("row", "split")
    count("sources", targets.join(splits, "row"), "request_id", "split", "source")
    named = targets.filter(targets.source.isin([LOGGED, ATTRIBUTED, FALLBACK]))
    count("explained", named.select("row", "source").distinct(), "row", "source")
    known = served.known.filter(served.known.is_request)
    count("conditions", known, "query_id", "generator")
    count("conditioned", known.select("generator", "query_id").distinct(), "query_id", "generator")
    best = served.hits.group_by(["generator", "row"]).aggregate(rank=served.hits["rank"].min())
    count("ranks", best.join(splits, "row"), "row", "generator", "split", "rank")
    count("impressions", shown, "request_id")
    count("listed_requests", sampled, "request_id")
    return days
