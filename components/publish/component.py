"""The step publish as Kubeflow Pipelines sees it; its work is in `clrflow`, found through `clrflow.steps.STEPS`."""

from kfp import dsl
from kfp.dsl import HTML, Metrics, Model, Output

from components import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def publish(
    run: str,
    gate: str,
    export_index: str,
    evaluate: str,
    manifest: Output[Model],
    report: Output[HTML],
    metrics: Output[Metrics],
) -> str:
    """Publish the bundle as a new version, atomically, if the gate let it through.

    A reader sees the old version or the new one, never a part. The newest versions are kept; the published pointer names the current one. When the
    gate held the model back, nothing is published and the report says so.

    Args:
        run: URI of the run, as configure returned it.
        gate: URI of the result of the step gate.
        export_index: URI of the result of the step export_index.
        evaluate: URI of the result of the step evaluate.
        manifest: A few kilobytes that stand for the data: version, and whether it is new.
        report: The step's page.
        metrics: Its finite scalars.

    Returns:
        URI of the step's result, for the steps that read it.
    """
    from clrflow.steps import execute

    outcome = execute("publish", run, {"gate": gate, "export_index": export_index, "evaluate": evaluate})
    outcome.save(manifest=manifest.path, report=report.path)
    for name, value in outcome.scalars().items():
        metrics.log_metric(name, value)
    return outcome.uri
