"""The step train as Kubeflow Pipelines sees it; its work is in `clrflow`, found through `clrflow.steps.STEPS`."""

from kfp import dsl
from kfp.dsl import HTML, Metrics, Model, Output

from components import TORCH_IMAGE


@dsl.component(base_image=TORCH_IMAGE, install_kfp_package=False)
def train(
    run: str,
    validate_data: str,
    bootstrap: str,
    semantic_ids: str,
    launcher: str,
    manifest: Output[Model],
    report: Output[HTML],
    metrics: Output[Metrics],
) -> str:
    """Train the item tower and the conditioned user sequence transformer, then compute all vectors.

    Tables are sharded by TorchRec; a killed attempt goes on from its last checkpoint, or adopts the job that it had started. The last phase writes
    the vectors of all items and of all held-out requests, so that later steps need no model.

    Args:
        run: URI of the run, as configure returned it.
        validate_data: URI of the result of the step validate_data.
        bootstrap: URI of the result of the step bootstrap.
        semantic_ids: URI of the result of the step semantic_ids.
        launcher: Where the job runs: local (in this step's pod), pytorchjob or trainjob (in pods of its own); "" means as the settings say.
        manifest: A few kilobytes that stand for the data: model, vectors, serving tables, chosen schedule.
        report: The step's page.
        metrics: Its finite scalars.

    Returns:
        URI of the step's result, for the steps that read it.
    """
    from clrflow.steps import execute

    inputs = {"validate_data": validate_data, "bootstrap": bootstrap, "semantic_ids": semantic_ids}
    outcome = execute("train", run, inputs, launcher=launcher)
    outcome.save(manifest=manifest.path, report=report.path)
    for name, value in outcome.scalars().items():
        metrics.log_metric(name, value)
    return outcome.uri
