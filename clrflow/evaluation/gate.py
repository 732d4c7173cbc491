"""The step `gate`: may the new model replace the published one?

A held model is a finished step with decision "hold" and a reason in words, not a failure: the last published version stays. What is
compared and how: comparison.py. Light to import, as the resume check calls champion_fingerprint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clrflow import storage
from clrflow.index.published import EVALUATION, Published, published_folder, read_published
from clrflow.manifest import Output
from clrflow.steps import Run, StepContext, StepResult

if TYPE_CHECKING:
    from clrflow.evaluation.comparison import Decision, Measured
    from clrflow.reporting import Report


def champion_fingerprint(run: Run) -> str:
    """What the gate compares with, "" for nothing.

    When the published version serves this run's own training result, it is what that version was compared with: so the same run, started
    again after it has published, finds its gate's result instead of comparing the model with itself.
    """
    champion = read_published(published_folder(run.workspace))
    if champion is None:
        return ""
    train = run.manifest_of("train")
    if train is not None and train.fingerprint == champion.train:
        return champion.champion
    return storage.fingerprint_of(champion.version, champion.fingerprint)


def run(context: StepContext) -> StepResult:
    """Compare with the champion on shared test requests; without one, hold against popularity and a least value."""
    from clrflow.evaluation.comparison import as_json, decide, measured, read_per_request
    from clrflow.evaluation.harness import MODEL, POPULARITY

    settings = context.config.gate
    train = context.inputs["train"].fingerprint
    per_request = read_per_request(context.inputs["evaluate"].output("per_request"), settings.metric)
    new, popularity = (measured(per_request, model, settings.metric) for model in (MODEL, POPULARITY))
    current = read_published(published_folder(context.workspace))
    already = current is not None and current.train == train
    champion, trouble = (None, "") if current is None or already else _champion(current, settings.metric)
    found = decide(new, popularity, champion, settings, already_published=already, trouble=trouble)
    place = context.place("decision.json")
    storage.write_json(place, as_json(found))
    metrics = {"value": new.mean, "popularity": popularity.mean, "published": float(found.decision == "publish")}
    if found.comparison is not None:
        metrics |= {
            "champion": found.comparison.champion_mean, "difference": found.comparison.difference.mean,
            "difference_low": found.comparison.difference.low, "difference_high": found.comparison.difference.high,
        }  # fmt: skip
    return StepResult(
        outputs={"decision": Output.of(place)},
        report=_report(found, new, popularity, current, settings.metric, settings.max_loss).html(),
        metrics=metrics,
        facts={
            "decision": found.decision, "reason": found.reason, "train": train, "champion": champion_fingerprint(context.run),
            "champion_version": current.version if current else "",
        },
    )  # fmt: skip


def _champion(current: Published, metric: str) -> tuple[Measured | None, str]:
    """The champion's figures, or why they can't be had: a damaged champion holds the new model until a person has looked."""
    from clrflow.errors import ClrflowError
    from clrflow.evaluation.comparison import measured, read_per_request
    from clrflow.evaluation.harness import MODEL

    place = storage.join(current.uri, EVALUATION, "per_request")
    try:
        return measured(read_per_request(place, metric), MODEL, metric), ""
    except (ClrflowError, OSError) as error:
        return None, (
            f"the published version {current.version} can't be compared with: {error} "
            "Set gate.metric to one that it has, or delete published/current.json to publish as if it were the first."
        )


def _report(found: Decision, new: Measured, popularity: Measured, current: Published | None, metric: str, max_loss: float) -> Report:
    from clrflow.reporting import Report, new_figure

    report = Report("Gate", found.reason)
    report.tiles({"decision": found.decision, metric: new.mean, "popularity": popularity.mean, "requests": len(new.values)})
    report.section("Compared with", f"Published version {current.version}." if current else "Nothing is published yet.")
    comparison = found.comparison
    if comparison is not None:
        rows: list[list[object]] = [
            ["new model", comparison.new_mean],
            ["champion", comparison.champion_mean],
            ["difference", str(comparison.difference)],
            ["shared test requests", comparison.num_shared],
            ["paired", comparison.paired],
        ]
        report.table(["", metric], rows)
        figure, axes = new_figure(7.0, 1.9)
        interval = comparison.difference
        errors = [[max(interval.mean - interval.low, 0.0)], [max(interval.high - interval.mean, 0.0)]]
        axes[0].errorbar([interval.mean], [0], xerr=errors, fmt="o", capsize=4)
        axes[0].axvline(0, color="#8a8d91", linewidth=1)
        axes[0].axvline(-max_loss, color="#a23b72", linewidth=1, linestyle="--")
        axes[0].set_yticks([])
        axes[0].set_xlabel(f"{metric}: new model - champion")
        report.figure(
            figure, "The difference with its interval; the model is held when all of it lies left of the dashed line (gate.max_loss)."
        )
    return report
