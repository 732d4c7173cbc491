"""The step bootstrap as Kubeflow Pipelines sees it; its work is in `clrflow`, found through `clrflow.steps.STEPS`."""

from kfp import dsl
from kfp.dsl import HTML, Dataset, Metrics, Output

from components import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def bootstrap(
    run: str,
    validate_data: str,
    manifest: Output[Dataset],
    report: Output[HTML],
    metrics: Output[Metrics],
) -> str:
    """Turn events into request-level training data: conditions of each user, and the engagements that they explain.

    The heuristic candidate generators (interest, item, board) say which conditions a user had at a point in time and what each would have brought;
    attribution joins the engagements to them. Splits are by time.

    Args:
        run: URI of the run, as configure returned it.
        validate_data: URI of the result of the step validate_data.
        manifest: A few kilobytes that stand for the data: requests, held-out candidates, item statistics, user states.
        report: The step's page.
        metrics: Its finite scalars.

    Returns:
        URI of the step's result, for the steps that read it.
    """
    from clrflow.steps import execute

    outcome = execute("bootstrap", run, {"validate_data": validate_data})
    outcome.save(manifest=manifest.path, report=report.path)
    for name, value in outcome.scalars().items():
        metrics.log_metric(name, value)
    return outcome.uri
