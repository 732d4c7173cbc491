"""The step's figures: what came in and went out, what each generator brings, what request-level rows save.

Numbers leave as one dataclass; metrics, facts and the report are three ways to show it.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clrflow.bootstrap.engine import Engine, Table
from clrflow.bootstrap.generators import Generator
from clrflow.bootstrap.serve import Served
from clrflow.contracts import ATTRIBUTED, CONDITION_TYPES, FALLBACK, LOGGED, NONE, SPLITS, TEST, TRAIN, VALIDATION
from clrflow.data.tables import iter_batches
from clrflow.errors import ClrflowError

TIME_CUT_SHARE = 0.1
"""The newest part of the log's time that a global cut would hold out, for the comparison in the report."""


DEPTHS = (1, 2, 5, 10, 20, 50, 100)
"""Candidates of a list that are looked at for recall."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorQuality:
    """One generator's figures; shares are of validation engagements unless they say otherwise."""

    name: str
    conditions_per_request: float
    requests_with_condition: float
    num_lists: int
    candidates_per_list: float
    recall: dict[int, float]
    """Share of validation engagements that stood among the first k of any of the request's lists, by k; {} without validation."""
    attributed_share: float
    """Share of all engagements that this generator explains, alone or with others."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitQuality:
    """One split: its size, its times and the number of target rows by source."""

    requests: int
    users: int
    engagements: int
    first: datetime.datetime | None
    last: datetime.datetime | None
    sources: dict[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quality:
    """All figures of one bootstrap."""

    splits: dict[str, SplitQuality]
    generators: tuple[GeneratorQuality, ...]
    explained: dict[str, int]
    """Engagements by what names their condition: logged, attributed, fallback, or nothing."""
    num_engagements: int
    num_impressions: int
    num_unusable_logged: int
    """Engagements whose log names a condition of an unknown type or without an id; they are treated as not logged."""
    num_pairs: int
    request_bytes: int
    pair_bytes: int
    num_listed_requests: int
    users_left_by_time_cut: int
    num_users: int
    targets_per_request: tuple[int, ...]
    """Number of requests with 1, 2, 3, ... engagements."""
    history_lengths: tuple[int, ...]
    """Number of requests by history length: 0, 1–2, 3–6, 7–14, ... (doubling)."""

    @property
    def compression(self) -> float:
        return self.pair_bytes / max(self.request_bytes, 1)

    def metrics(self) -> dict[str, float]:
        """Scalars for the UI."""
        out = {f"requests_{name}": float(split.requests) for name, split in self.splits.items()}
        out |= {"engagements": float(self.num_engagements), "compression": self.compression}
        out |= {f"share_{source}": count / max(self.num_engagements, 1) for source, count in self.explained.items()}
        for generator in self.generators:
            out[f"{generator.name}_conditions_per_request"] = generator.conditions_per_request
            out[f"{generator.name}_attributed_share"] = generator.attributed_share
            out |= {f"{generator.name}_recall@{k}": value for k, value in generator.recall.items() if k >= 10}
        return out

    def facts(self) -> dict[str, Any]:
        """Small values for later steps; times as ISO strings, null where a split is empty."""

        def iso(moment: datetime.datetime | None) -> str | None:
            return None if moment is None else moment.isoformat()

        return {
            "splits": {
                name: {"requests": split.requests, "users": split.users, "engagements": split.engagements, "sources": split.sources}
                for name, split in self.splits.items()
            },
            "train_until": iso(self.splits[TRAIN].last),
            "first_validation": iso(self.splits[VALIDATION].first),
            "first_test": iso(self.splits[TEST].first),
            "num_engagements": self.num_engagements,
            "num_pairs": self.num_pairs,
            "compression": round(self.compression, 4),
            "explained": self.explained,
            "generators": [generator.name for generator in self.generators],
            "num_listed_requests": self.num_listed_requests,
            "users_left_by_time_cut": self.users_left_by_time_cut,
        }


def measure(
    engine: Engine,
    generators: list[Generator],
    *,
    served: Served,
    targets: Table,
    requests: Table,
    engagements: Table,
    shown: Table,
    sampled: Table,
    requests_uri: str,
) -> Quality:
    """Figures from what is kept in the engine and from the written requests, which must hold each engagement exactly once."""
    unusable = engagements.condition_type.notin([NONE, *CONDITION_TYPES[1:]]) | (
        engagements.condition_type.isin(CONDITION_TYPES[1:]) & engagements.condition_id.isnull()
    )
    totals = engine.arrow(
        engagements.aggregate(
            n=engagements.count(), unusable=unusable.sum(), first=engagements.timestamp.min(), last=engagements.timestamp.max()
        )
    ).to_pylist()[0]  # fmt: skip
    written = _weigh(requests_uri)
    if written["engagements"] != totals["n"]:
        raise ClrflowError(
            f"{requests_uri}: holds {written['engagements']:,} engagements, the events have {totals['n']:,}; the step lost or "
            "doubled some. Delete the folder, run it again, and report this if it comes back."
        )
    explained = _counts_by(engine, targets.filter(targets.source.isin([LOGGED, ATTRIBUTED, FALLBACK])).select("row", "source").distinct())
    explained["nothing"] = totals["n"] - sum(explained.values())
    cut = ibis.literal(totals["last"] - (totals["last"] - totals["first"]) * TIME_CUT_SHARE)
    users = engagements.group_by("user_id").aggregate(
        before=(engagements.timestamp < cut).any(), after=(engagements.timestamp >= cut).any()
    )
    sizes = engine.arrow(users.aggregate(n=users.count(), left=(users.before & users.after).sum())).to_pylist()[0]
    return Quality(
        splits=_splits(engine, requests, engagements, targets),
        generators=_generators(engine, generators, served, requests, engagements),
        explained=explained,
        num_engagements=totals["n"],
        num_impressions=int(engine.value(shown.count())),
        num_unusable_logged=int(totals["unusable"] or 0),
        num_pairs=written["pairs"],
        request_bytes=written["request_bytes"],
        pair_bytes=written["pair_bytes"],
        num_listed_requests=int(engine.value(sampled.count())),
        users_left_by_time_cut=int(sizes["left"]),
        num_users=int(sizes["n"]),
        targets_per_request=written["targets_per_request"],
        history_lengths=written["history_lengths"],
    )


def _counts_by(engine: Engine, rows: Table, key: str = "source") -> dict[str, int]:
    """Number of rows by the value of a column, in the column's order."""
    counted = engine.arrow(rows.group_by(key).aggregate(n=rows.count()).order_by(key))
    return dict(zip(counted.column(key).to_pylist(), counted.column("n").to_pylist(), strict=True))


def _splits(engine: Engine, requests: Table, engagements: Table, targets: Table) -> dict[str, SplitQuality]:
    grouped = engagements.group_by("split").aggregate(
        requests=engagements.request_id.nunique(), users=engagements.user_id.nunique(), engagements=engagements.count(),
        first=engagements.timestamp.min(), last=engagements.timestamp.max(),
    )  # fmt: skip
    sizes = {row.pop("split"): row for row in engine.arrow(grouped).to_pylist()}
    rows = targets.join(requests.select("request_id", "split"), "request_id")
    counted = engine.arrow(rows.group_by(["split", "source"]).aggregate(n=rows.count()).order_by(["split", "source"])).to_pylist()
    nothing = {"requests": 0, "users": 0, "engagements": 0, "first": None, "last": None}
    return {
        name: SplitQuality(**sizes.get(name, nothing), sources={row["source"]: row["n"] for row in counted if row["split"] == name})
        for name in SPLITS
    }


def _generators(
    engine: Engine, generators: list[Generator], served: Served, requests: Table, engagements: Table
) -> tuple[GeneratorQuality, ...]:
    known = served.known.filter(served.known.is_request)
    conditions = known.group_by("generator").aggregate(n=known.count(), requests=known.query_id.nunique())
    lists = served.lists.group_by(["generator", "condition_id", "state", "period"]).aggregate(n=served.lists.count())
    lists = lists.group_by("generator").aggregate(length=lists.n.mean())
    splits = engagements.select("row", "split")
    best = served.hits.join(splits, "row").group_by(["generator", "row", "split"]).aggregate(rank=served.hits["rank"].min())
    ranks = engine.arrow(best.group_by(["generator", "split", "rank"]).aggregate(n=best.count())).to_pylist()
    by_name = {row["generator"]: row for row in engine.arrow(conditions.outer_join(lists, "generator")).to_pylist()}
    totals = _counts_by(engine, splits, "split")
    num_requests, num_validation = engine.value(requests.count()), totals.get(VALIDATION, 0)
    found = []
    for generator in generators:
        row = by_name.get(generator.name, {"n": 0, "requests": 0, "length": 0.0})
        hits = [one for one in ranks if one["generator"] == generator.name]
        recall = {
            k: sum(one["n"] for one in hits if one["split"] == VALIDATION and one["rank"] <= k) / max(num_validation, 1) for k in DEPTHS
        }
        found.append(
            GeneratorQuality(
                name=generator.name,
                conditions_per_request=row["n"] / num_requests,
                requests_with_condition=row["requests"] / num_requests,
                num_lists=served.num_lists[generator.name],
                candidates_per_list=float(row["length"] or 0.0),
                recall=recall if num_validation else {},
                attributed_share=sum(one["n"] for one in hits) / sum(totals.values()),
            )
        )
    return tuple(found)


def _weigh(uri: str) -> dict[str, Any]:
    """Reads the written requests once: engagements, pairs, and the bytes of both forms as Arrow holds them.

    The pair form has a row for each target with the user, the history, the one condition and the target: what training reads where requests
    aren't kept together.
    """
    total = {"engagements": 0, "pairs": 0, "request_bytes": 0, "pair_bytes": 0}
    targets_per_request: np.ndarray = np.zeros(1, np.int64)
    lengths: np.ndarray = np.zeros(1, np.int64)
    for batch in iter_batches(uri, num_rows=1024):
        batch = pa.RecordBatch.from_arrays([pa.concat_arrays([column]) for column in batch.columns], schema=batch.schema)
        num_targets = pc.list_value_length(batch.column("targets")).to_numpy().astype(np.int64)
        history = pc.list_value_length(batch.column("history_items")).to_numpy().astype(np.int64)
        flat = batch.column("targets").flatten()
        unconditional = pc.equal(pc.struct_field(flat, "condition"), -1)
        owners = np.repeat(np.arange(len(batch)), num_targets)[unconditional.to_numpy(zero_copy_only=False)]
        engaged = np.bincount(owners, minlength=len(batch))
        elements = max(int(history.sum()), 1)
        of_event = sum(batch.column(f"history_{part}").flatten().nbytes for part in ("items", "actions", "times")) / elements
        conditions = batch.column("conditions").flatten()
        of_condition = conditions.nbytes / max(len(conditions), 1)
        of_user = sum(batch.column(name).nbytes for name in ("request_id", "user_id", "requested_at", "split")) / len(batch)
        conditioned = len(flat) - int(pc.sum(unconditional).as_py() or 0)
        pairs_of_history = float((num_targets * history).sum()) * of_event
        total["engagements"] += len(owners)
        total["pairs"] += len(flat)
        total["request_bytes"] += batch.nbytes
        total["pair_bytes"] += int(pairs_of_history + conditioned * of_condition + len(flat) * of_user + flat.nbytes)
        targets_per_request = _add(targets_per_request, np.bincount(engaged))
        lengths = _add(lengths, np.bincount(np.floor(np.log2(history + 1)).astype(np.int64)))
    return {**total, "targets_per_request": _counts(targets_per_request[1:]), "history_lengths": _counts(lengths)}


def _add(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    size = max(len(one), len(other))
    return np.pad(one, (0, size - len(one))) + np.pad(other, (0, size - len(other)))


def _counts(values: np.ndarray) -> tuple[int, ...]:
    listed: Sequence[int] = values.tolist()
    return tuple(listed)
