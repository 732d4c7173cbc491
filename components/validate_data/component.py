"""The step validate_data as Kubeflow Pipelines sees it; its work is in `clrflow`, found through `clrflow.steps.STEPS`."""

from kfp import dsl
from kfp.dsl import HTML, Dataset, Metrics, Output

from components import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def validate_data(
    run: str,
    manifest: Output[Dataset],
    report: Output[HTML],
    metrics: Output[Metrics],
) -> str:
    """Check the tables against the data contract, clean and sort them, and write them for the next steps.

    Tables with a missing column, a wrong type or rows that break a rule end the run here, each named with its remedy, and so do
    data that moved too far from those of the published version. Every rule's count and every comparison is in the report.

    Args:
        run: URI of the run, as configure returned it.
        manifest: A few kilobytes that stand for the data: what was written: tables, counts, first and last event.
        report: The step's page.
        metrics: Its finite scalars.

    Returns:
        URI of the step's result, for the steps that read it.
    """
    from clrflow.steps import execute

    outcome = execute("validate_data", run)
    outcome.save(manifest=manifest.path, report=report.path)
    for name, value in outcome.scalars().items():
        metrics.log_metric(name, value)
    return outcome.uri
