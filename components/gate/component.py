"""The step gate as Kubeflow Pipelines sees it; its work is in `clrflow`, found through `clrflow.steps.STEPS`."""

from kfp import dsl
from kfp.dsl import HTML, Dataset, Metrics, Output

from components import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def gate(
    run: str,
    evaluate: str,
    train: str,
    manifest: Output[Dataset],
    report: Output[HTML],
    metrics: Output[Metrics],
) -> str:
    """Decide whether the new model may replace the published one, and say why.

    Compares with the published model on the same requests with a confidence interval. Holding a model back is a result, not a failure: the run goes
    on, and publish then publishes nothing.

    Args:
        run: URI of the run, as configure returned it.
        evaluate: URI of the result of the step evaluate.
        train: URI of the result of the step train.
        manifest: A few kilobytes that stand for the data: decision and its reason.
        report: The step's page.
        metrics: Its finite scalars.

    Returns:
        URI of the step's result, for the steps that read it.
    """
    from clrflow.steps import execute

    outcome = execute("gate", run, {"evaluate": evaluate, "train": train})
    outcome.save(manifest=manifest.path, report=report.path)
    for name, value in outcome.scalars().items():
        metrics.log_metric(name, value)
    return outcome.uri
