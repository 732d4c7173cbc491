"""The step export_index as Kubeflow Pipelines sees it; its work is in `clrflow`, found through `clrflow.steps.STEPS`."""

from kfp import dsl
from kfp.dsl import HTML, Metrics, Model, Output

from components import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def export_index(
    run: str,
    validate_data: str,
    bootstrap: str,
    train: str,
    manifest: Output[Model],
    report: Output[HTML],
    metrics: Output[Metrics],
) -> str:
    """Build the nearest-neighbour index and bundle it with all that a server needs.

    Item ids stay the original int64 ones. Recall against exact search is measured and gated. The bundle of a model that the gate held back can be
    queried by its URI, though it is not published.

    Args:
        run: URI of the run, as configure returned it.
        validate_data: URI of the result of the step validate_data.
        bootstrap: URI of the result of the step bootstrap.
        train: URI of the result of the step train.
        manifest: A few kilobytes that stand for the data: bundle, recall against exact search.
        report: The step's page.
        metrics: Its finite scalars.

    Returns:
        URI of the step's result, for the steps that read it.
    """
    from clrflow.steps import execute

    outcome = execute("export_index", run, {"validate_data": validate_data, "bootstrap": bootstrap, "train": train})
    outcome.save(manifest=manifest.path, report=report.path)
    for name, value in outcome.scalars().items():
        metrics.log_metric(name, value)
    return outcome.uri
