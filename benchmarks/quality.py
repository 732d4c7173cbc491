"""Retrieval quality on MovieLens-100k: the model beside popularity, item-kNN, ALS and the heuristics, in one harness, same masking.

Two protocols: each user's last block of at most ten events (943 users), and one strict global cut in time, which leaves few users.
`full` adds three seeds and the trade between steering and adding up: what `training.condition_softness` does to the share of a list that
carries its interest, and to the union of known conditions' lists against one unconditioned list of equal length.

Results are kept in a workspace, `demo/workspace` by default, so that what `make demo` has trained isn't trained again.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.harness import FULL, Claim, Result, main, not_measured
from clrflow import storage
from clrflow.config import load_config
from clrflow.data.movielens import prepare
from clrflow.manifest import Manifest
from clrflow.steps import STEPS, Run, execute

TABLES, WORKSPACE = "demo/tables", os.environ.get("CLRFLOW_BENCH_WORKSPACE", "demo/workspace")
CUT_DAYS = 10.75
"""Validation and test each take this much of the 215 days: a tenth of the time is held out."""
SOFTNESS = (0.0, 0.05, 0.15, 0.3)
"""Of all types of conditions alike."""
SEEDS = (1, 2)
MODELS = ("model", "popularity", "itemknn", "als", "heuristic_interest", "heuristic_item", "heuristic_board", "heuristic_all")


def evaluated(name: str, *overrides: str) -> dict[str, Manifest]:
    """Run the pipeline up to the evaluation, in this process; finished steps are found."""
    run = Run(name=f"benchmark-{name}", workspace=storage.absolute(WORKSPACE), config=load_config("demo", overrides=overrides))
    uri = run.save()
    results: dict[str, Manifest] = {}
    for step in ("validate_data", "bootstrap", "semantic_ids", "train", "evaluate"):
        results[step] = execute(step, uri, {needed: results[needed].uri for needed in STEPS[step].inputs}).manifest
    return results


def rows_of(protocol: str, results: dict[str, Manifest]) -> Iterator[dict[str, Any]]:
    """A row a model."""
    metrics, users = results["evaluate"].metrics, results["bootstrap"].facts["splits"]["test"]["users"]
    for model in MODELS:
        prefix = "" if model == "model" else f"{model}_"
        if f"{prefix}recall@50" in metrics:
            yield {
                "protocol": protocol, "model": model, "users": users, "recall@50": metrics[f"{prefix}recall@50"],
                "ndcg@10": metrics[f"{prefix}ndcg@10"],
            }  # fmt: skip


def conditions_row(name: str, metrics: dict[str, float]) -> dict[str, Any]:
    """What conditions bring, in one row."""
    return {
        "protocol": name, "model": "known conditions", "recall@50": metrics["recall@50"], "ndcg@10": metrics["ndcg@10"],
        "union": metrics["known_recall"], "none, equal length": metrics["none_at_equal_length_recall"],
        "difference": metrics["known_recall"] - metrics["none_at_equal_length_recall"], "condition match@10": metrics["condition_match@10"],
    }  # fmt: skip


def measure(size: str) -> Result:
    """Both protocols; at `full` the frontier and more seeds too."""
    prepare(TABLES)
    blocks = evaluated("blocks")
    cut = evaluated(
        "time", "bootstrap.split.by=time", f"bootstrap.split.validation_days={CUT_DAYS}", f"bootstrap.split.test_days={CUT_DAYS}"
    )
    metrics = blocks["evaluate"].metrics
    rows = [*rows_of("last block", blocks), conditions_row("last block", metrics), *rows_of("time cut", cut)]
    claims = []
    for figure in ("recall@50", "ndcg@10"):
        best = max(metrics[f"{model}_{figure}"] for model in ("popularity", "itemknn", "als"))
        claims.append(
            Claim(
                name=f"model's {figure} over the best of popularity, item-kNN and ALS",
                goal="> 1",
                value=metrics[figure] / best,
                holds=metrics[figure] > best,
            )
        )
    match, difference = metrics["condition_match@10"], metrics["known_recall"] - metrics["none_at_equal_length_recall"]
    claims.append(Claim(name="share of the top 10 under an interest that carries it", goal="≥ 0.8", value=match, holds=match >= 0.8))
    claims.append(Claim(name="known conditions minus none at equal length", goal="> 0", value=difference, holds=difference > 0))
    if size == FULL:
        for seed in SEEDS:
            more = evaluated(f"seed-{seed}", f"training.seed={seed}")
            rows += [
                *list(rows_of(f"last block, seed {seed}", more))[:1],
                conditions_row(f"last block, seed {seed}", more["evaluate"].metrics),
            ]
        for softness in SOFTNESS:
            alike = ", ".join(f"{kind}: {softness}" for kind in ("interest", "item", "board"))
            more = evaluated(f"softness-{softness}", f"training.condition_softness={{{alike}}}", "training.schedule=co_train")
            rows.append(conditions_row(f"softness {softness}", more["evaluate"].metrics))
        steered = [row["condition match@10"] for row in rows if str(row["protocol"]).startswith("softness")]
        falls = all(before > after for before, after in itertools.pairwise(steered))
        claims.append(Claim(name="condition match falls with softness", goal="at every step", value=steered[-1], holds=falls, needs=FULL))
    else:
        claims.append(not_measured("condition match falls with softness", "at every step"))
    return Result(rows=rows, claims=claims)


if __name__ == "__main__":
    sys.exit(main("quality", measure))
