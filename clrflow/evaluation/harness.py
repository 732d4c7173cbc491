"""Ranks every model of the evaluation on one split: same requests, same catalogue, same mask, same ties."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from clrflow.contracts import TIME
from clrflow.evaluation.baselines import Baseline
from clrflow.evaluation.generators import rank_generators
from clrflow.evaluation.groups import Array
from clrflow.evaluation.heldout import Catalogue, HeldOut
from clrflow.evaluation.intervals import Interval, intervals
from clrflow.evaluation.metrics import coverage, per_query
from clrflow.evaluation.ranking import Ranking, rank
from clrflow.evaluation.scorers import by_popularity, by_vectors, load_query_vectors

MODEL, POPULARITY = "model", "popularity"
HEURISTIC = "heuristic_"
"""Prefix of the heuristic generators among the models' names."""


@dataclasses.dataclass(frozen=True)
class SplitFigures:
    """All models on one split, by name; the model comes first."""

    held: HeldOut
    rankings: dict[str, Ranking]
    values: dict[str, dict[str, Array]]
    """Model → metric → float64 [num_requests]."""
    intervals: dict[str, dict[str, Interval]]
    coverage: dict[str, dict[int, float]]
    """Model → k → share of the catalogue in some list."""

    def mean(self, model: str, metric: str) -> float:
        return self.intervals[model][metric].mean

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.held.facts(),
            "models": {
                model: {name: interval.as_json() for name, interval in metrics.items()}
                | {f"coverage@{k}": share for k, share in self.coverage[model].items()}
                for model, metrics in self.intervals.items()
            },
        }


def rank_models(
    held: HeldOut, catalogue: Catalogue, items: Array, query_vectors_uri: str, candidates_uri: str, baselines: Sequence[Baseline], *,
    cutoffs: tuple[int, ...], seed: int,
) -> SplitFigures:  # fmt: skip
    """The unconditional model, popularity, the fitted baselines and the heuristic generators."""
    depth = max(cutoffs)

    def ranked(scorer: Any) -> Ranking:
        return rank(scorer, held.relevant, held.masked, depth, catalogue.num_items)

    queries = load_query_vectors(query_vectors_uri, held.request_ids, np.full(len(held), -1))
    rankings = {MODEL: ranked(by_vectors(queries, items)), POPULARITY: ranked(by_popularity(catalogue.num_engagements))}
    rankings |= {baseline.name: ranked(baseline.scorer(held)) for baseline in baselines}
    rankings |= {HEURISTIC + name: ranking for name, ranking in rank_generators(candidates_uri, held, catalogue, depth).items()}
    return figures_of(held, rankings, catalogue, cutoffs, seed)


def figures_of(held: HeldOut, rankings: Mapping[str, Ranking], catalogue: Catalogue, cutoffs: tuple[int, ...], seed: int) -> SplitFigures:
    """Metrics with their intervals; one bootstrap for all models, so that they share the draws."""
    values = {name: per_query(ranking, cutoffs) for name, ranking in rankings.items()}
    flat = {f"{model} {metric}": column for model, columns in values.items() for metric, column in columns.items()}
    found = intervals(flat, held.user_ids, seed=seed)
    return SplitFigures(
        held=held,
        rankings=dict(rankings),
        values=values,
        intervals={model: {metric: found[f"{model} {metric}"] for metric in columns} for model, columns in values.items()},
        coverage={name: {k: coverage(ranking, k, catalogue.num_items) for k in cutoffs} for name, ranking in rankings.items()},
    )


def per_request_schema(metrics: Sequence[str]) -> pa.Schema:
    """The long table of all figures: one row a request and model. evaluate → gate, and kept with what is published."""
    keys = [("request_id", pa.int64()), ("user_id", pa.int64()), ("requested_at", TIME), ("split", pa.string()), ("model", pa.string())]
    return pa.schema([*keys, *((name, pa.float64()) for name in metrics)])


def per_request_table(splits: Sequence[SplitFigures]) -> pa.Table:
    """The figures of the splits in that form."""
    parts = []
    for figures in splits:
        held = figures.held
        for model, columns in figures.values.items():
            keys = {
                "request_id": held.request_ids, "user_id": held.user_ids, "requested_at": held.requested_at_us,
                "split": pa.array([held.split] * len(held), pa.string()), "model": pa.array([model] * len(held), pa.string()),
            }  # fmt: skip
            parts.append(pa.table(keys | columns).cast(per_request_schema(list(columns))))
    return pa.concat_tables(parts)
