"""The step's figures: what came in and went out, what each generator brings, what request-level rows save.

Numbers leave as one dataclass; metrics, facts and the report are three ways to show it.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import ibis

from clrflow.bootstrap.engine import Engine
from clrflow.bootstrap.expressions import Table
from clrflow.bootstrap.figures import DayFigures
from clrflow.bootstrap.generators import Generator
from clrflow.contracts import CONDITION_TYPES, NONE, SPLITS, TEST, TRAIN, UNCONDITIONAL, VALIDATION
from clrflow.errors import ClrflowError

TIME_CUT_SHARE = 0.1
"""The newest part of the log's time that a global cut would hold out, for the comparison in the report."""


DEPTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
"""Candidates of a list that are looked at for recall."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorQuality:
    """One generator's figures; shares are of validation engagements unless they say otherwise."""

    name: str
    conditions_per_request: float
    requests_with_condition: float
    num_lists: int
    """Lists that were written for held-out requests."""
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
    file_bytes: int
    num_days: int
    days_taken_over: tuple[str, ...]
    """Days that an earlier run had built."""
    num_before_lookback: int
    """Engagements of days whose lookback the window doesn't hold: they are histories of others only."""
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
            "num_days": self.num_days,
            "days_taken_over": list(self.days_taken_over),
            "num_before_lookback": self.num_before_lookback,
            "compression": round(self.compression, 4),
            "explained": self.explained,
            "generators": [generator.name for generator in self.generators],
            "num_listed_requests": self.num_listed_requests,
            "users_left_by_time_cut": self.users_left_by_time_cut,
        }


def measure(
    engine: Engine,
    generators: Sequence[Generator],
    *,
    engagements: Table,
    figures: DayFigures,
    days: Sequence[int],
    taken_over: Sequence[str],
) -> Quality:
    """Figures from the engagements that the engine keeps and from those of the written `days`, which hold each engagement exactly once."""
    inside = engagements.filter(engagements.day.isin(list(days)))
    unusable = inside.condition_type.notin([NONE, *CONDITION_TYPES[1:]]) | (
        inside.condition_type.isin(CONDITION_TYPES[1:]) & inside.condition_id.isnull()
    )
    aggregates = {"n": inside.count(), "unusable": unusable.sum(), "first": inside.timestamp.min(), "last": inside.timestamp.max()}
    totals = engine.arrow(inside.aggregate(**aggregates)).to_pylist()[0]
    if figures.sizes.engagements != totals["n"]:
        raise ClrflowError(
            f"the written requests hold {figures.sizes.engagements:,} engagements, the events have {totals['n']:,}; the step lost or doubled "
            "some. Delete its folder, run it again, and report this if it comes back."
        )
    cut = ibis.literal(totals["last"] - (totals["last"] - totals["first"]) * TIME_CUT_SHARE)
    users = inside.group_by("user_id").aggregate(before=(inside.timestamp < cut).any(), after=(inside.timestamp >= cut).any())
    sizes = engine.arrow(users.aggregate(n=users.count(), left=(users.before & users.after).sum())).to_pylist()[0]
    return Quality(
        splits=_splits(engine, inside, figures),
        generators=tuple(_generator(one.name, figures) for one in generators),
        explained={**figures.explained, "nothing": totals["n"] - sum(figures.explained.values())},
        num_engagements=totals["n"],
        num_impressions=figures.impressions,
        num_unusable_logged=int(totals["unusable"] or 0),
        num_pairs=figures.sizes.pairs,
        request_bytes=figures.sizes.request_bytes,
        pair_bytes=figures.sizes.pair_bytes,
        file_bytes=figures.sizes.file_bytes,
        num_days=len(days),
        days_taken_over=tuple(taken_over),
        num_before_lookback=int(engine.value(engagements.count())) - totals["n"],
        num_listed_requests=figures.listed_requests,
        users_left_by_time_cut=int(sizes["left"]),
        num_users=int(sizes["n"]),
        targets_per_request=_from(1, figures.sizes.by_targets),
        history_lengths=_from(0, figures.sizes.by_history),
    )


def _splits(engine: Engine, engagements: Table, figures: DayFigures) -> dict[str, SplitQuality]:
    grouped = engagements.group_by("split").aggregate(
        requests=engagements.request_id.nunique(), users=engagements.user_id.nunique(), engagements=engagements.count(),
        first=engagements.timestamp.min(), last=engagements.timestamp.max(),
    )  # fmt: skip
    sizes = {row.pop("split"): row for row in engine.arrow(grouped).to_pylist()}
    nothing = {"requests": 0, "users": 0, "engagements": 0, "first": None, "last": None}
    counted = [(*name.partition(" ")[::2], count) for name, count in figures.sources.items()]
    return {
        name: SplitQuality(**sizes.get(name, nothing), sources={source: count for split, source, count in counted if split == name})
        for name in SPLITS
    }


def _generator(name: str, figures: DayFigures) -> GeneratorQuality:
    """Generators' names hold no blank, so the figures' keys can be cut at blanks."""
    ranks = [
        (split, int(rank), count) for (one, split, rank), count in ((key.split(), n) for key, n in figures.ranks.items()) if one == name
    ]
    num_validation = sum(count for key, count in figures.sources.items() if key == f"{VALIDATION} {UNCONDITIONAL}")
    deepest = max((rank for _, rank, _ in ranks), default=0)  # beyond it the lists are at their end
    depths = [k for place, k in enumerate(DEPTHS) if place == 0 or DEPTHS[place - 1] < deepest]
    within = {k: sum(n for split, rank, n in ranks if split == VALIDATION and rank <= k) for k in depths}
    num_requests, num_lists = max(figures.sizes.requests, 1), figures.lists.get(name, 0)
    return GeneratorQuality(
        name=name,
        conditions_per_request=figures.conditions.get(name, 0) / num_requests,
        requests_with_condition=figures.conditioned.get(name, 0) / num_requests,
        num_lists=num_lists,
        candidates_per_list=figures.listed.get(name, 0) / max(num_lists, 1),
        recall={k: found / num_validation for k, found in within.items()} if num_validation else {},
        attributed_share=sum(n for _, _, n in ranks) / max(figures.sizes.engagements, 1),
    )


def _from(first: int, counts: dict[str, int]) -> tuple[int, ...]:
    """Counts by number as a list that begins with the count of `first`."""
    return tuple(counts.get(str(number), 0) for number in range(first, max((int(key) for key in counts), default=first) + 1))
