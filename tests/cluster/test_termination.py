"""Stopping the launcher: a terminated run takes its job with it at once, a drained step leaves the job to its next attempt."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clrflow.launch.cluster.api import Cluster
from clrflow.launch.cluster.cleanup import end_jobs, finished_jobs
from tests.cluster.conftest import eventually
from tests.cluster.launching import Launching, Process

pytestmark = pytest.mark.cluster

WORKFLOWS = ("argoproj.io", "v1alpha1")


@pytest.fixture
def workflow(launching: Launching) -> Iterator[str]:
    """A run of Kubeflow Pipelines as the launcher sees it: its Workflow."""
    body = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"generateName": "run-"}, "spec": {}}
    made = launching.cluster.custom.create_namespaced_custom_object(*WORKFLOWS, launching.workspace.namespace, "workflows", body)
    name = made["metadata"]["name"]
    yield name
    launching.cluster.custom.delete_namespaced_custom_object(*WORKFLOWS, launching.workspace.namespace, "workflows", name)


@pytest.fixture
def start(launching: Launching) -> Callable[..., Process]:
    def start(request: dict[str, Any], workflow: str = "") -> Process:
        environment = {"CLRFLOW_KFP_WORKFLOW": workflow, "CLRFLOW_KFP_RUN_ID": f"id-{workflow}"} if workflow else {}
        return launching.start(request, launching.settings(), **environment)

    return start


def all_gone(launching: Launching, within_s: float) -> None:
    eventually(lambda: not launching.jobs() and not launching.pods(), within_s=within_s, what="end of the job and its pods")


def test_a_terminated_run_takes_its_job_with_it(launching: Launching, workflow: str, start: Callable[..., Process]) -> None:
    process = start(launching.job("counting", "OUTPUT", "900"), workflow)
    process.wait_for("number 00003")
    assert launching.jobs()[0]["metadata"]["ownerReferences"][0]["name"] == workflow
    launching.cluster.custom.patch_namespaced_custom_object(
        *WORKFLOWS, launching.workspace.namespace, "workflows", workflow, {"spec": {"activeDeadlineSeconds": 0}}
    )
    process.terminate_as_kubeflow_does()
    all_gone(launching, within_s=10)


def test_a_drained_steps_next_attempt_adopts_the_job(launching: Launching, workflow: str, start: Callable[..., Process]) -> None:
    request = launching.job("counting", "OUTPUT", "70")
    first = start(request, workflow)
    first.wait_for("number 00003")
    first.terminate_as_kubeflow_does()
    assert first.process.returncode != 0
    (left,) = launching.jobs()
    second = start(request, workflow)
    assert second.wait() == 0, second.said
    assert "following it" in second.said
    (job,) = launching.jobs()
    assert job["metadata"]["uid"] == left["metadata"]["uid"]
    api = Cluster(launching.cluster.api, launching.workspace.namespace)
    assert end_jobs(api, run_name="test") == []
    assert finished_jobs(api, delete=False) == [job["metadata"]["name"]]
    assert finished_jobs(api, delete=True) == [job["metadata"]["name"]]
    all_gone(launching, within_s=10)


def test_ctrl_c_outside_kubeflow_ends_the_job(launching: Launching, start: Callable[..., Process]) -> None:
    process = start(launching.job("counting", "OUTPUT", "900"))
    process.wait_for("number 00003")
    process.process.send_signal(signal.SIGINT)
    assert process.wait(15) != 0
    assert "stopped; deleting job" in process.said
    all_gone(launching, within_s=10)


def test_the_exit_handler_removes_what_a_killed_launcher_left(launching: Launching, workflow: str, start: Callable[..., Process]) -> None:
    process = start(launching.job("counting", "OUTPUT", "900"), workflow)
    process.wait_for("number 00003")
    process.kill()
    api = Cluster(launching.cluster.api, launching.workspace.namespace)
    assert end_jobs(api, run_name="another") == []
    assert len(end_jobs(api, run_name="test")) == 1
    all_gone(launching, within_s=10)
