"""A process knows its run by what Kubeflow Pipelines put into its environment."""

from __future__ import annotations

from clrflow.launch.cluster.identity import Identity


def test_outside_kubeflow_there_is_no_run_id_and_no_owner() -> None:
    identity = Identity.from_environment(environ={})
    assert identity == Identity()
    assert identity.owner is None


def test_in_a_step_the_run_and_its_workflow_come_from_the_environment() -> None:
    identity = Identity.from_environment(environ={"CLRFLOW_KFP_RUN_ID": "1f9", "CLRFLOW_KFP_WORKFLOW": "nightly-x7"})
    assert (identity.run_id, identity.workflow) == ("1f9", "nightly-x7")
    assert identity.owner is None  # without the Workflow's uid there can be none
