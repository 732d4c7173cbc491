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
from clrflow.contracts import CONDITION_TYPES, NONE, SPLITS, TRAIN, VALIDATION
from clrflow.data.tables import iter_batches
from clrflow.errors import ClrflowError

TIME_CUT_SHARE = 0.1
"""The newest part of the log's time that a global cut would hold out, for the comparison in the report."""


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
            out |= {f"{generator.name}_recall@{k}": value for k, value in generator.recall.items()}
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
            "first_validation": iso(self.splits[SPLITS[1]].first),
            "first_test": iso(self.splits[SPLITS[2]].first),
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
    num_engagements = int(engine.value(engagements.count()))
    written = _weigh(requests_uri)
    if written["engagements"] != num_engagements:
        raise ClrflowError(
            f"{requests_uri}: holds {written['engagements']:,} engagements, the events have {num_engagements:,}; the step lost or "
            "doubled some. Delete the folder, run it again, and report this if it comes back."
        )
    explained = engine.arrow(_explained(targets).group_by("by").aggregate(n=ibis._.count()).order_by("by"))
    counts = dict(zip(explained.column("by").to_pylist(), explained.column("n").to_pylist(), strict=True))
    counts["nothing"] = num_engagements - sum(counts.values())
    unusable = engagements.filter(
        engagements.condition_type.notnull()
        & (engagements.condition_type != NONE)
        & (engagements.condition_type.notin(CONDITION_TYPES[1:]) | engagements.condition_id.isnull())
    )
    first, newest = engine.value(engagements.timestamp.min()), engine.value(engagements.timestamp.max())
    time_cut = newest - (newest - first) * TIME_CUT_SHARE
    by_user = engagements.group_by("user_id").aggregate(first=engagements.timestamp.min(), last=engagements.timestamp.max())
    left = by_user.filter((by_user["first"] < ibis.literal(time_cut)) & (by_user["last"] >= ibis.literal(time_cut)))
    return Quality(
        splits={name: _split(engine, name, requests, engagements, targets) for name in SPLITS},
        generators=tuple(_generator(engine, one, served, requests, engagements) for one in generators),
        explained={name: int(count) for name, count in counts.items()},
        num_engagements=num_engagements,
        num_impressions=int(engine.value(shown.count())),
        num_unusable_logged=int(engine.value(unusable.count())),
        num_pairs=written["pairs"],
        request_bytes=written["request_bytes"],
        pair_bytes=written["pair_bytes"],
        num_listed_requests=int(engine.value(sampled.count())),
        users_left_by_time_cut=int(engine.value(left.count())),
        num_users=int(engine.value(by_user.count())),
        targets_per_request=written["targets_per_request"],
        history_lengths=written["history_lengths"],
    )


def _explained(targets: Table) -> Table:
    """One row an engagement that has a conditioned example of its own: what names the condition."""
    rows = targets.filter(targets.source.isin(["logged", "attributed", "fallback"]))
    return rows.select("row", by=rows.source).distinct()


def _split(engine: Engine, name: str, requests: Table, engagements: Table, targets: Table) -> SplitQuality:
    mine = engagements.filter(engagements.split == name)
    sizes = engine.arrow(
        mine.aggregate(
            requests=mine.request_id.nunique(), users=mine.user_id.nunique(), engagements=mine.count(),
            first=mine.timestamp.min(), last=mine.timestamp.max(),
        )
    ).to_pylist()[0]  # fmt: skip
    rows = targets.semi_join(requests.filter(requests.split == name), "request_id")
    counted = engine.arrow(rows.group_by("source").aggregate(n=rows.count()).order_by("source"))
    return SplitQuality(**sizes, sources=dict(zip(counted.column("source").to_pylist(), counted.column("n").to_pylist(), strict=True)))


def _generator(engine: Engine, generator: Generator, served: Served, requests: Table, engagements: Table) -> GeneratorQuality:
    num_requests = int(engine.value(requests.count()))
    mine = served.known.filter((served.known.generator == generator.name) & served.known.is_request)
    lists = served.lists.filter(served.lists.generator == generator.name)
    per_list = lists.group_by(["condition_id", "state", "period"]).aggregate(n=lists.count())
    hits = served.hits.filter(served.hits.generator == generator.name)
    validation = engagements.filter(engagements.split == VALIDATION)
    num_validation = int(engine.value(validation.count()))
    best = hits.semi_join(validation, "row").group_by("row").aggregate(rank=hits["rank"].min())
    ranks = engine.arrow(best.select("rank")).column("rank").to_numpy()
    return GeneratorQuality(
        name=generator.name,
        conditions_per_request=engine.value(mine.count()) / num_requests,
        requests_with_condition=engine.value(mine.query_id.nunique()) / num_requests,
        num_lists=served.num_lists[generator.name],
        candidates_per_list=float(engine.value(per_list.n.mean()) or 0.0),
        recall={k: float((ranks <= k).sum() / num_validation) for k in (1, 2, 5, 10, 20, 50, 100)} if num_validation else {},
        attributed_share=engine.value(hits["row"].nunique()) / max(int(engine.value(engagements.count())), 1),
    )


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
