"""The page of the evaluation: the model beside its baselines first, then what conditions bring, then where it is weak, then the checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from clrflow.contracts import TEST, VALIDATION
from clrflow.evaluation.conditions import ConditionFigures, Versus
from clrflow.evaluation.generators import ALL
from clrflow.evaluation.harness import HEURISTIC, MODEL, POPULARITY
from clrflow.evaluation.intervals import Interval
from clrflow.reporting import Report, new_figure
from clrflow.reporting.report import COLOURS

if TYPE_CHECKING:
    from clrflow.evaluation.step import Evaluation

RECALL, NDCG, HIT = "recall@50", "ndcg@10", "hit@10"
OURS, OTHERS = COLOURS[0], COLOURS[5]
LABELS = {MODEL: "model (no condition)", POPULARITY: "popularity", "itemknn": "item-kNN", "als": "ALS"}


def label(model: str) -> str:
    """A model's name as people read it."""
    if model == HEURISTIC + ALL:
        return "all generators, by turns"
    return LABELS.get(model, f"{model.removeprefix(HEURISTIC)} generator" if model.startswith(HEURISTIC) else model)


def build_report(evaluation: Evaluation) -> Report:
    """All figures of one evaluation as a page."""
    test = evaluation.headline
    facts = test.held.facts()
    report = Report(
        "Evaluation",
        f"All {evaluation.num_items:,} items ranked for {facts['ranked']:,} held-out test requests of {facts['users']:,} users; "
        "ties never favour the target" + (", seen items masked for everybody." if evaluation.mask_seen else ", seen items not masked."),
    )
    known = evaluation.conditions[TEST].equal_length[0] if TEST in evaluation.conditions else None
    report.tiles(
        {
            RECALL: test.mean(MODEL, RECALL), NDCG: test.mean(MODEL, NDCG), HIT: test.mean(MODEL, HIT),
            "popularity's " + RECALL: test.mean(POPULARITY, RECALL), "best baseline's " + RECALL: _best_baseline(evaluation),
            **({"known conditions": known.recall.mean, "none, equal length": known.none.mean} if known else {}),
        }
    )  # fmt: skip
    _model_and_baselines(report, evaluation)
    if TEST in evaluation.conditions:
        _conditions(report, evaluation.conditions[TEST], evaluation)
    _slices(report, evaluation)
    _checks(report, evaluation)
    return report


def _best_baseline(evaluation: Evaluation) -> float:
    test = evaluation.headline
    return max(test.mean(model, RECALL) for model in test.intervals if model != MODEL)


def _model_and_baselines(report: Report, evaluation: Evaluation) -> None:
    test = evaluation.headline
    models = list(test.intervals)
    report.section(
        "The model beside its baselines",
        "Test split, unconditional query. Brackets and whiskers: 95 % intervals, users drawn with all their requests.",
    )
    names = [RECALL, "recall@10", NDCG, HIT]
    report.table(
        ["", *names, "coverage@50"],
        [[label(model), *(str(test.intervals[model][name]) for name in names), test.coverage[model][50]] for model in models],
        highlight=0,
    )
    figure, axes = new_figure(9.0, 3.2, columns=2)
    for ax, name in zip(axes, (RECALL, NDCG)):
        _bars(ax, [label(model) for model in models], [test.intervals[model][name] for model in models])
        ax.set_title(name)
    report.figure(figure, f"{RECALL} and {NDCG} on test, with 95 % intervals.")
    figure, axes = new_figure(7.0, 3.4)
    for model in models:
        dashed = model.startswith(HEURISTIC)
        axes[0].plot(
            evaluation.curve_depths, evaluation.curves[model],
            label=label(model), linestyle="--" if dashed else "-", linewidth=2.4 if model == MODEL else 1.3,
        )  # fmt: skip
    axes[0].set_xlabel("k (items in the list)")
    axes[0].set_ylabel("recall@k")
    axes[0].legend(fontsize=8, frameon=False)
    report.figure(figure, "Recall by length of the list, test.")
    if VALIDATION in evaluation.splits:
        validation = evaluation.splits[VALIDATION]
        report.text("The same on the validation split, on which schedules, epochs and the baselines' settings were picked:")
        report.table(["", *names], [[label(model), *(validation.mean(model, name) for name in names)] for model in models], highlight=0)


def _conditions(report: Report, figures: ConditionFigures, evaluation: Evaluation) -> None:
    report.section(
        "What conditions bring",
        f"Known conditions: each brings its {evaluation.list_length} best items; their union against the unconditioned list of the same "
        f"length, request by request ({figures.num_requests:,} requests).",
    )
    report.table(
        ["conditions", "requests", "mean length", "recall", "none at equal length", "difference"],
        [
            [row.name, row.num_requests, row.mean_length, str(row.recall), str(row.none), str(row.difference)]
            for row in figures.equal_length
        ],
        highlight=0,
    )
    figure, axes = new_figure(7.5, 3.0)
    _pairs(axes[0], [row.name for row in figures.equal_length], figures.equal_length)
    report.figure(figure, "Recall of the union of known conditions and of the unconditioned list of equal length.")
    if figures.merged:
        report.text("Merged by turns into one list of k items (as a server with quotas would), against the unconditioned list of k:")
        report.table(
            ["list", "k", "recall", "none", "difference"],
            [[row.name, row.fixed_length, str(row.recall), str(row.none), str(row.difference)] for row in figures.merged],
        )
    report.section(
        "How well conditions steer (oracle)",
        "An oracle condition is drawn from the target's own interests: it shows the steering, and is no fair comparison.",
    )
    if figures.oracle:
        report.table(
            ["list", "k", "recall of its targets", "none, same targets", "difference"],
            [[row.name, row.fixed_length, str(row.recall), str(row.none), str(row.difference)] for row in figures.oracle],
        )
    report.text("Share of the first 10 items under an interest that carry it; nothing is filtered:")
    report.table(
        ["interests", "conditions", "under the interest", "without condition"],
        [[row.role, row.num_conditions, str(row.conditioned), str(row.none)] for row in figures.match],
    )
    there = [row for row in figures.by_type if row["num_known"]]
    figure, axes = new_figure(9.0, 2.8, columns=2)
    names = [row.role for row in figures.match]
    _grouped_bars(
        axes[0],
        names,
        {"under the interest": [row.conditioned.mean for row in figures.match], "none": [row.none.mean for row in figures.match]},
    )
    axes[0].set_ylim(0, 1.3)
    axes[0].set_yticks(np.linspace(0, 1, 6))
    axes[0].set_title("condition match@10")
    _grouped_bars(
        axes[1], [row["type"] for row in there],
        {f"recall@{k}": [row[f"recall@{k}"] for row in there] for k in (10, 50)},
    )  # fmt: skip
    axes[1].set_title("one known condition's list")
    report.figure(figure, "Left: items that carry the interest asked for. Right: recall of all targets by one condition alone, by type.")
    columns = list(figures.by_type[0])
    report.table(columns, [[row[name] for name in columns] for row in figures.by_type])


def _slices(report: Report, evaluation: Evaluation) -> None:
    titles = {
        "popularity": ("By item popularity", "Deciles of the items by engagements in training; cold items have none."),
        "age": ("By item age", "Time from the item's creation to the request."),
        "activity": ("By user activity", "Requests by the number of items that the user had seen before."),
    }
    for name, rows in evaluation.slices.items():
        report.section(*titles[name])
        models = [MODEL, POPULARITY, *(baseline.name for baseline in evaluation.baselines)]
        what = "requests" if name == "activity" else "targets"
        report.table(
            ["", what, *(f"{label(model)} {RECALL}" for model in models)],
            [[row.name, row.num, *(row.recall.get(model) for model in models)] for row in rows],
        )
        if name == "popularity":
            figure, axes = new_figure(8.0, 3.0)
            short = ["cold", *(str(number) for number in range(1, 11))]
            _grouped_bars(axes[0], short, {label(model): [row.recall.get(model, np.nan) for row in rows] for model in models})
            axes[0].set_xlabel("popularity decile of the target (10 = most popular)")
            axes[0].set_ylabel(RECALL)
            report.figure(figure, "Recall by popularity of the target.")


def _checks(report: Report, evaluation: Evaluation) -> None:
    leakage = evaluation.leakage
    report.section(
        "Checks",
        "Training must not see what it is tested on. "
        + (
            "The split is one cut in time: the last training event lies before the first held-out one."
            if leakage["split_by"] == "time"
            else "Each user's last request is test, so the spans of different users overlap; within each user they don't."
        ),
    )
    report.table(["split", "first target", "last target"], [[name, span["first"], span["last"]] for name, span in leakage["spans"].items()])
    report.table(
        ["check", "value"],
        [
            ["users with a training target after a held-out one", leakage["users_trained_on_their_future"]],
            ["training pairs (user, item) the baselines were fitted on", evaluation.num_training_pairs],
        ],
    )
    columns = ["split", *evaluation.headline.held.facts()]
    report.table(columns, [[name, *figures.held.facts().values()] for name, figures in evaluation.splits.items()])
    report.text(
        "repeats_dropped: targets that the user had already seen, which a masked list can't hold; skipped: requests with no other target."
    )
    for baseline in evaluation.baselines:
        report.text(f"{label(baseline.name)}: {baseline.setting}" + (", picked on validation:" if baseline.grid else "."))
        if baseline.grid:
            picked = [setting for setting, _, _ in baseline.grid].index(baseline.setting)
            report.table(["setting", RECALL, NDCG], baseline.grid, highlight=picked)


def _whiskers(values: list[Interval]) -> np.ndarray[Any, Any]:
    """Distances from mean to bounds, [2, n]; rounding can put a bound of no width on the wrong side."""
    pairs = [[value.mean - value.low, value.high - value.mean] for value in values]
    return np.maximum(np.nan_to_num(np.array(pairs).reshape(-1, 2).T), 0.0)


def _bars(ax: Axes, names: list[str], values: list[Interval]) -> None:
    means = np.array([value.mean for value in values])
    colours = [OURS if at == 0 else OTHERS for at in range(len(names))]
    ax.barh(np.arange(len(names)), means, xerr=_whiskers(values), color=colours, height=0.65, error_kw={"elinewidth": 0.9})
    ax.set_yticks(np.arange(len(names)), names)
    ax.invert_yaxis()
    ax.grid(axis="x", alpha=0.25)
    ax.grid(axis="y", visible=False)


def _pairs(ax: Axes, names: list[str], rows: list[Versus]) -> None:
    at = np.arange(len(names))
    for offset, (what, values) in enumerate((("conditions", [row.recall for row in rows]), ("none", [row.none for row in rows]))):
        means = np.array([value.mean for value in values])
        ax.bar(
            at + 0.38 * offset, means, 0.36, yerr=_whiskers(values), label=what, error_kw={"elinewidth": 0.9}, color=(OURS, OTHERS)[offset]
        )
    ax.set_xticks(at + 0.19, names)
    ax.set_ylabel("recall")
    ax.margins(y=0.25)  # room for the legend above the whiskers
    ax.legend(fontsize=8, frameon=False)


def _grouped_bars(ax: Axes, names: list[str], groups: dict[str, list[float]]) -> None:
    width = 0.8 / max(len(groups), 1)
    at = np.arange(len(names))
    for offset, (what, values) in enumerate(groups.items()):
        ax.bar(at + width * offset, values, width * 0.95, label=what, color=COLOURS[offset % len(COLOURS)])
    ax.set_xticks(at + width * (len(groups) - 1) / 2, names)
    ax.legend(fontsize=8, frameon=False)
