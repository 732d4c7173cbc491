"""The step `evaluate`: ranks the held-out requests with the model and its baselines, and writes what gate and people read.

Reads vectors, never models. Next: heldout.py (what is right), ranking.py (ties), conditions.py (what a condition brings), gate.py.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
from typing import Any

from clrflow import storage
from clrflow.contracts import KNOWN, TEST, TRAIN, VALIDATION
from clrflow.data.tables import write_table
from clrflow.errors import ClrflowError, DataError
from clrflow.evaluation.baselines import Baseline, fit_baseline, training_matrix
from clrflow.evaluation.conditions import ConditionFigures, measure_conditions
from clrflow.evaluation.harness import MODEL, POPULARITY, SplitFigures, per_request_schema, per_request_table, rank_models
from clrflow.evaluation.heldout import Source, load_catalogue
from clrflow.evaluation.metrics import recall_curve
from clrflow.evaluation.report import build_report
from clrflow.evaluation.scorers import load_item_vectors
from clrflow.evaluation.slices import Slice, slice_recall
from clrflow.manifest import Output
from clrflow.progress import say
from clrflow.steps import StepContext, StepResult

SHORT, LONG = 10, 50
"""List lengths of the headline figures: NDCG and hit rate of a short list, recall of a long one."""
CURVE_DEPTHS = (1, 2, 5, 10, 20, 30, 50, 75, 100)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """All that was measured; evaluation.json, the metrics and the report are three ways to show it."""

    splits: dict[str, SplitFigures]
    conditions: dict[str, ConditionFigures]
    slices: dict[str, list[Slice]]
    baselines: list[Baseline]
    curves: dict[str, list[float]]
    """Recall at CURVE_DEPTHS by model, on the test split."""
    curve_depths: list[int]
    leakage: dict[str, Any]
    num_items: int
    mask_seen: bool
    list_length: int
    num_training_pairs: int

    @property
    def headline(self) -> SplitFigures:
        return self.splits[TEST]

    def as_json(self) -> dict[str, Any]:
        return {
            "num_items": self.num_items,
            "mask_seen": self.mask_seen,
            "splits": {name: figures.as_json() for name, figures in self.splits.items()},
            "conditions": {name: figures.as_json() for name, figures in self.conditions.items()},
            "slices": {name: [row.as_json() for row in rows] for name, rows in self.slices.items()},
            "curves": {"depths": self.curve_depths, "recall": self.curves},
            "baselines": {
                baseline.name: {"setting": baseline.setting, "grid": [list(row) for row in baseline.grid]} for baseline in self.baselines
            },
            "leakage": self.leakage,
            "num_training_pairs": self.num_training_pairs,
        }

    def metrics(self) -> dict[str, float]:
        """Flat figures of the test split; those that nothing speaks for are NaN and left out by whoever writes them."""
        test = self.headline
        found = {name: test.mean(MODEL, name) for name in (f"recall@{LONG}", f"recall@{SHORT}", f"ndcg@{SHORT}", f"hit@{SHORT}", "mrr")}
        found[f"coverage@{LONG}"] = test.coverage[MODEL][LONG]
        for model in test.intervals:
            if model != MODEL:
                found[f"{model}_recall@{LONG}"] = test.mean(model, f"recall@{LONG}")
                found[f"{model}_ndcg@{SHORT}"] = test.mean(model, f"ndcg@{SHORT}")
        cold = self.slices["popularity"][0]
        found[f"cold_recall@{LONG}"] = cold.recall.get(MODEL, math.nan)
        if TEST in self.conditions:
            known = self.conditions[TEST].equal_length[0]
            found["known_recall"], found["none_at_equal_length_recall"] = known.recall.mean, known.none.mean
            for match in self.conditions[TEST].match:
                found[f"condition_match@{SHORT}" if match.role == KNOWN else f"{match.role}_condition_match@{SHORT}"] = (
                    match.conditioned.mean
                )
        return found

    def table(self) -> dict[str, Any]:
        """The model beside its baselines, for a terminal."""
        names = [f"recall@{LONG}", f"recall@{SHORT}", f"ndcg@{SHORT}", f"hit@{SHORT}"]
        test = self.headline
        rows = [
            [model, *(round(test.mean(model, name), 4) for name in names), round(test.coverage[model][LONG], 4)] for model in test.intervals
        ]
        return {"columns": ["model", *names, f"coverage@{LONG}"], "rows": rows}


def run(context: StepContext) -> StepResult:
    """Rank validation and test, measure conditions and slices, write evaluation.json and the per-request table."""
    evaluation, num_rows = evaluate(context)
    figures_uri = context.place("evaluation.json")
    storage.write_json(figures_uri, finite(evaluation.as_json()))
    test = evaluation.headline.held.facts()
    return StepResult(
        outputs={
            "metrics": Output.of(figures_uri),
            "per_request": Output.of(context.place("per_request"), num_rows=num_rows),
        },
        report=build_report(evaluation).html(),
        metrics=evaluation.metrics(),
        facts={
            "table": finite(evaluation.table()),
            "num_requests": test["ranked"],
            "num_users": test["users"],
            "requests": {name: figures.held.facts() for name, figures in evaluation.splits.items()},
            "leakage": evaluation.leakage,
        },
    )


def evaluate(context: StepContext) -> tuple[Evaluation, int]:
    """Everything of the step but its report: the figures, and the rows of the per-request table that it wrote."""
    settings, data = context.config.evaluation, context.config.data
    validated, bootstrap, train = (context.inputs[name] for name in ("validate_data", "bootstrap", "train"))
    cutoffs = tuple(sorted({*settings.cutoffs, SHORT, LONG}))
    catalogue = load_catalogue(validated.output("items"), bootstrap.output("item_statistics"), validated.output("interests"))
    items = load_item_vectors(train.output("item_vectors"), catalogue.item_ids)
    positive = [action.name for action in data.actions if action.positive]
    scratch = str(storage.local_path(context.folder)) if storage.is_local(context.folder) else None
    with Source(bootstrap.output("requests"), validated.output("events"), positive, scratch, settings.memory_limit) as source:
        leakage = check_leakage(source, str(bootstrap.config["bootstrap"]["split"]["by"]))
        held = {
            split: source.held_out(catalogue, split, mask_seen=settings.mask_seen, max_requests=settings.max_requests, seed=settings.seed)
            for split in (VALIDATION, TEST)
        }
        users, fitted_items, num_pairs = source.training_pairs(settings.baseline_max_events)
    if not len(held[TEST]):
        raise DataError(
            f"{bootstrap.output('requests')}: none of the {held[TEST].num_requests} test requests has a target that its user hadn't seen "
            "before, so nothing can be measured; use more data, or a longer bootstrap.split.test_days."
        )
    say(f"evaluate: {len(held[TEST]):,} test and {len(held[VALIDATION]):,} validation requests over {catalogue.num_items:,} items")
    matrix = training_matrix(catalogue, users, fitted_items)
    baselines = []
    for name in settings.baselines if matrix.nnz else ():
        baselines.append(
            fit_baseline(name, matrix, catalogue, held[VALIDATION], use_grid=num_pairs <= settings.baseline_grid_events, seed=settings.seed)
        )
        say(f"evaluate: fitted {name} ({baselines[-1].setting})")
    queries, candidates = train.output("query_vectors"), bootstrap.output("candidates")
    splits = {
        split: rank_models(rows, catalogue, items, queries, candidates, baselines, cutoffs=cutoffs, seed=settings.seed)
        for split, rows in held.items()
        if len(rows)
    }
    conditions = {
        split: measure_conditions(
            rows, catalogue, items, queries,
            list_length=settings.list_length, cutoffs=cutoffs, max_requests=settings.max_condition_requests, seed=settings.seed,
        )
        for split, rows in held.items()
        if len(rows.conditions.row)
    }  # fmt: skip
    rankings = splits[TEST].rankings
    shown = {name: rankings[name] for name in (MODEL, POPULARITY, *(baseline.name for baseline in baselines))}
    depths = sorted({depth for depth in CURVE_DEPTHS if depth <= max(cutoffs)} | set(cutoffs))
    table = per_request_table(list(splits.values()))
    keys = len(per_request_schema([]))
    written = write_table(context.place("per_request"), table, per_request_schema(table.column_names[keys:]))
    evaluation = Evaluation(
        splits=splits,
        conditions=conditions,
        slices=slice_recall(shown, held[TEST], catalogue, LONG),
        baselines=baselines,
        curves={name: recall_curve(ranking, depths) for name, ranking in rankings.items()},
        curve_depths=depths,
        leakage=leakage,
        num_items=catalogue.num_items,
        mask_seen=settings.mask_seen,
        list_length=settings.list_length,
        num_training_pairs=num_pairs,
    )
    return evaluation, written.num_rows or 0


def check_leakage(source: Source, split_by: str) -> dict[str, Any]:
    """The times of the splits; raises ClrflowError when training saw what it is tested on.

    split=time: all training targets lie before all validation ones, and these before the test ones. split=last_requests: it holds
    for each user (ties in time are ordered by the log's own order).
    """
    span = source.span()
    late = source.out_of_order_users()
    if late:
        raise ClrflowError(f"requests: {late} users have training targets later than their held-out ones; run bootstrap again.")
    order = [split for split in (TRAIN, VALIDATION, TEST) if split in span]
    if split_by == "time":
        for before, after in itertools.pairwise(order):
            if span[before][1] >= span[after][0]:
                raise ClrflowError(
                    f"requests: the last {before} target ({_iso(span[before][1])}) is not before the first {after} target "
                    f"({_iso(span[after][0])}) although bootstrap.split.by=time; run bootstrap again."
                )
    return {
        "split_by": split_by,
        "spans": {split: {"first": _iso(span[split][0]), "last": _iso(span[split][1])} for split in order},
        "users_trained_on_their_future": late,
    }


def _iso(microseconds: int) -> str:
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=microseconds)
    return moment.isoformat(timespec="seconds")


def finite(value: Any) -> Any:
    """The same tree with None for what is not finite, as JSON has no NaN."""
    if isinstance(value, dict):
        return {key: finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [finite(child) for child in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
