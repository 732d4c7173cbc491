"""The step clean_up as Kubeflow Pipelines sees it: the exit handler of the DAG; its work is in `clrflow.ending`."""

from kfp import dsl
from kfp.dsl import PipelineTaskFinalStatus

from components import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def clean_up(workspace: str, run_name: str, lock: str, launcher: str, job: str, status: PipelineTaskFinalStatus) -> None:
    """End what a run left behind, however it ended: jobs on the cluster, its lock; and tell people of a failure or a held model.

    The exit handler of the DAG. It runs after failed and terminated runs too. A web service is told where the environment variable
    CLRFLOW_WEBHOOK_URL is set (from a Secret, by launch.webhook): a POST of JSON with run, state (failed, terminated, held), status, reason,
    report.

    Args:
        workspace: URI of the folder that holds all results.
        run_name: Name of this run; "" means that its first step chose one.
        lock: Name of the lock that this run may hold; "" means none.
        launcher: Where the training job ran, if not where the settings say; "" means as in the settings.
        job: Kubeflow's id of this run.
        status: How the run ended, as Kubeflow says it.
    """
    import os

    from clrflow.ending import end_run

    end_run(
        workspace=workspace,
        run_name=run_name,
        job=job,
        lock=lock,
        launcher=launcher,
        state=status.state,
        message=status.error_message or "",
        webhook_url=os.environ.get("CLRFLOW_WEBHOOK_URL", ""),
    )
