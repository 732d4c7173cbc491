"""The step semantic_ids as Kubeflow Pipelines sees it; its work is in `clrflow`, found through `clrflow.steps.STEPS`."""

from kfp import dsl
from kfp.dsl import HTML, Dataset, Metrics, Output

from components import TORCH_IMAGE


@dsl.component(base_image=TORCH_IMAGE, install_kfp_package=False)
def semantic_ids(
    run: str,
    validate_data: str,
    manifest: Output[Dataset],
    report: Output[HTML],
    metrics: Output[Metrics],
) -> str:
    """Give each item a tuple of codes, so that similar items share their first codes.

    Trains an RQ-VAE over the content embeddings; the run fails if a level uses too few of its codes or too many items collide.

    Args:
        run: URI of the run, as configure returned it.
        validate_data: URI of the result of the step validate_data.
        manifest: A few kilobytes that stand for the data: codes, tokenizer and its hash.
        report: The step's page.
        metrics: Its finite scalars.

    Returns:
        URI of the step's result, for the steps that read it.
    """
    from clrflow.steps import execute

    outcome = execute("semantic_ids", run, {"validate_data": validate_data})
    outcome.save(manifest=manifest.path, report=report.path)
    for name, value in outcome.scalars().items():
        metrics.log_metric(name, value)
    return outcome.uri
