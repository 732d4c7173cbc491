"""The step evaluate as Kubeflow Pipelines sees it; its work is in `clrflow`, found through `clrflow.steps.STEPS`."""

from kfp import dsl
from kfp.dsl import HTML, Dataset, Metrics, Output

from components import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def evaluate(
    run: str,
    validate_data: str,
    bootstrap: str,
    train: str,
    manifest: Output[Dataset],
    report: Output[HTML],
    metrics: Output[Metrics],
) -> str:
    """Rank the whole catalogue for the held-out requests, beside popularity, item-kNN, ALS and the heuristic generators.

    Every model is ranked over the same items with the same masking; ties never favour the target. The report slices the result by condition type,
    item age, popularity and user activity.

    Args:
        run: URI of the run, as configure returned it.
        validate_data: URI of the result of the step validate_data.
        bootstrap: URI of the result of the step bootstrap.
        train: URI of the result of the step train.
        manifest: A few kilobytes that stand for the data: evaluation, figures a request.
        report: The step's page.
        metrics: Its finite scalars.

    Returns:
        URI of the step's result, for the steps that read it.
    """
    from clrflow.steps import execute

    outcome = execute("evaluate", run, {"validate_data": validate_data, "bootstrap": bootstrap, "train": train})
    outcome.save(manifest=manifest.path, report=report.path)
    for name, value in outcome.scalars().items():
        metrics.log_metric(name, value)
    return outcome.uri
