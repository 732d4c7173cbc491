"""Compares two models by their per-request figures: on the requests that both were tested on, or else as two samples."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clrflow.contracts import TEST
from clrflow.data.tables import read_table
from clrflow.errors import ConfigError
from clrflow.evaluation.groups import Array
from clrflow.evaluation.harness import per_request_schema
from clrflow.evaluation.intervals import Interval, intervals, unpaired_difference
from clrflow.evaluation.settings import GateSettings

KEYS = ("user_id", "requested_at", "turn")


@dataclasses.dataclass(frozen=True)
class Measured:
    """One model's metric on its test requests."""

    table: pa.Table
    """user_id, requested_at, turn (which of the user's requests of that moment), value."""

    @property
    def values(self) -> Array:
        column: Array = self.table["value"].to_numpy()
        return column

    @property
    def users(self) -> Array:
        column: Array = self.table["user_id"].to_numpy()
        return column

    @property
    def mean(self) -> float:
        return float(self.values.mean()) if len(self.table) else math.nan


def measured(per_request: pa.Table, model: str, metric: str) -> Measured:
    """The test rows of a model. ConfigError when the metric isn't among the columns."""
    keys = per_request_schema([]).names
    if metric not in per_request.column_names or metric in keys:
        there = ", ".join(name for name in per_request.column_names if name not in keys)
        raise ConfigError(f"gate.metric={metric!r} was not measured; set it to one of {there}, or add its k to evaluation.cutoffs.")
    rows = per_request.filter((pc.field("split") == TEST) & (pc.field("model") == model))
    rows = rows.sort_by([("user_id", "ascending"), ("requested_at", "ascending"), ("request_id", "ascending")])
    user, moment = rows["user_id"].to_numpy(), rows["requested_at"].combine_chunks().cast(pa.int64()).to_numpy(zero_copy_only=False)
    first = np.r_[True, (user[1:] != user[:-1]) | (moment[1:] != moment[:-1])] if len(user) else np.zeros(0, bool)
    starts = np.flatnonzero(first)
    turn = np.arange(len(user)) - np.repeat(starts, np.diff(np.r_[starts, len(user)]))
    values = rows[metric].combine_chunks().to_numpy(zero_copy_only=False).astype(np.float64)
    return Measured(pa.table({"user_id": user, "requested_at": rows["requested_at"].combine_chunks(), "turn": turn, "value": values}))


def read_per_request(uri: str, metric: str) -> pa.Table:
    """What the gate needs of a per-request table; a metric that isn't a column is found missing by `measured`."""
    table = read_table(uri)
    keep = [*per_request_schema([]).names, metric]
    return table.select([name for name in keep if name in table.column_names]) if metric in table.column_names else table


@dataclasses.dataclass(frozen=True)
class Comparison:
    """new - champion, with how it was found."""

    difference: Interval
    paired: bool
    num_shared: int
    new_mean: float
    champion_mean: float
    """Means over the requests that were compared."""


def compare(new: Measured, champion: Measured, settings: GateSettings) -> Comparison:
    """Paired bootstrap over the users of shared requests; unpaired over all when fewer than `min_shared_requests` are shared."""
    shared = new.table.join(champion.table, keys=list(KEYS), join_type="inner", right_suffix="_champion")
    shared = shared.sort_by([(name, "ascending") for name in KEYS]).combine_chunks()
    if len(shared) >= settings.min_shared_requests:
        ours, theirs = shared["value"].to_numpy(), shared["value_champion"].to_numpy()
        users = shared["user_id"].to_numpy()
        found = intervals({"difference": ours - theirs}, users, settings.confidence, settings.seed)["difference"]
        return Comparison(found, True, len(shared), float(ours.mean()), float(theirs.mean()))
    found = unpaired_difference(new.values, new.users, champion.values, champion.users, settings.confidence, settings.seed)
    return Comparison(found, False, len(shared), new.mean, champion.mean)


@dataclasses.dataclass(frozen=True)
class Decision:
    """publish or hold, with the reason in words."""

    decision: Literal["publish", "hold"]
    reason: str
    comparison: Comparison | None = None


def decide(
    new: Measured, popularity: Measured, champion: Measured | None, settings: GateSettings, *, already_published: bool, trouble: str = ""
) -> Decision:
    """The rules of the gate, first match decides.

    already_published: the published version serves this very training result. trouble: why the champion's figures can't be read; "" when
    they can or there is no champion.
    """
    metric = settings.metric
    unknown = int(np.isnan(new.values).sum())
    if not len(new.values) or unknown:
        return Decision("hold", f"{metric} is not a number for {unknown} of {len(new.values)} test requests, so the model can't be judged.")
    if already_published:
        return Decision("publish", f"already published: the current version serves this training result ({metric} {new.mean:.4f}).")
    if settings.beat_popularity and not new.mean > popularity.mean:
        return Decision(
            "hold",
            f"{metric} {new.mean:.4f} does not beat popularity's {popularity.mean:.4f} (gate.beat_popularity=true); "
            "train longer or on more data.",
        )
    if trouble:
        return Decision("hold", trouble)
    if champion is None:
        if new.mean < settings.min_value:
            return Decision("hold", f"{metric} {new.mean:.4f} is below gate.min_value={settings.min_value}; nothing is published yet.")
        return Decision(
            "publish", f"first version: {metric} {new.mean:.4f}, popularity {popularity.mean:.4f}; there is no champion to compare with."
        )
    found = compare(new, champion, settings)
    how = (
        f"on {found.num_shared:,} shared test requests"
        if found.paired
        else f"on different test requests ({found.num_shared} shared), so as two samples"
    )
    low, high = found.difference.low, found.difference.high
    figures = (
        f"{metric} {found.new_mean:.4f}, champion {found.champion_mean:.4f}, difference {found.difference.mean:+.4f} "
        f"[{low:+.4f}, {high:+.4f}] {how}"
    )
    if not math.isfinite(high):
        return Decision("hold", f"the comparison with the champion gives no number: {figures}.", found)
    if high < -settings.max_loss:
        return Decision("hold", f"worse than the champion by more than gate.max_loss={settings.max_loss}: {figures}.", found)
    return Decision("publish", f"not worse than the champion by more than gate.max_loss={settings.max_loss}: {figures}.", found)


def as_json(decision: Decision) -> dict[str, Any]:
    """For decision.json and the facts."""
    found = decision.comparison
    return {
        "decision": decision.decision,
        "reason": decision.reason,
        "comparison": None
        if found is None
        else {
            "difference": found.difference.as_json(), "paired": found.paired, "num_shared": found.num_shared,
            "new_mean": found.new_mean, "champion_mean": found.champion_mean,
        },
    }  # fmt: skip
