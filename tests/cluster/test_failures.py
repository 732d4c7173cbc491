"""Jobs that can't succeed: the error says which pod, why and what to do, early, and no job is left in the cluster.

The launchers run side by side, as most of them only wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.conftest import Images, TestCluster, Workspace
from tests.cluster.launching import Launching, Process

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def failing(launching: Launching) -> dict[str, Process]:
    """All launchers of this module, started together; two of them need a pod that runs for a while."""

    def start(module: str, *arguments: str, **changes: Any) -> Process:
        nodes = changes.get("nodes", 1)
        return launching.start(launching.job(module, *arguments, num_processes=nodes), launching.settings(**changes))

    return {
        "exits 1": start("failing", "1", max_restarts=1),
        "bad image": start("failing", "1", image="localhost/clrflow-test/none:1"),
        "no room": start("failing", "1", nodes=2, capacity="autoscaled", resources={"cpu": "900"}, provision_timeout_s=8),
        "no EFA": start("failing", "1", nodes=2, instance="p5.48xlarge", transport="efa"),
        "stalls": start("counting", "OUTPUT", "1", stall_timeout_s=600, deadline_s=2),
    }


def ended(process: Process) -> str:
    """What the launcher said by the time it failed."""
    assert process.wait() == 1, process.said
    return process.said


def test_a_program_that_always_fails_ends_the_step_within_its_restarts(failing: dict[str, Process], launching: Launching) -> None:
    said = ended(failing["exits 1"])
    assert "restart 1 of 1" in said
    assert said.count("made in namespace") == 2
    error = said.partition("error: ")[2]
    assert "-master-0 of job " in error
    assert "exit code 1" in error
    assert "no such table: shard 7" in error
    assert "launch.max_restarts=1" in error


def test_an_image_that_cannot_be_pulled_is_named(failing: dict[str, Process]) -> None:
    error = ended(failing["bad image"]).partition("error: ")[2]
    assert "localhost/clrflow-test/none:1" in error
    assert "launch.image" in error


def test_pods_that_find_no_node_fail_with_the_schedulers_own_words(failing: dict[str, Process]) -> None:
    said = ended(failing["no room"])
    assert "0 of 2 pods scheduled for" in said
    error = said.partition("error: ")[2]
    assert "Insufficient cpu" in error
    assert "launch.provision_timeout_s=8" in error


def test_a_cluster_without_efa_refuses_before_anything_is_made(failing: dict[str, Process]) -> None:
    said = ended(failing["no EFA"])
    assert "made in namespace" not in said
    assert "vpc.amazonaws.com/efa" in said or "p5.48xlarge" in said


def test_a_job_ends_at_its_deadline(failing: dict[str, Process]) -> None:
    assert "launch.deadline_s=2" in ended(failing["stalls"])


def test_no_job_is_left(failing: dict[str, Process], launching: Launching) -> None:
    for process in failing.values():
        process.wait()
    assert launching.jobs() == []


def test_bad_input_that_a_worker_finds_is_not_tried_again(launching: Launching) -> None:
    request = launching.job("failing", "2")
    (launching.workspace.folder / "programs" / "refusing.py").write_text(
        "import sys\nfrom clrflow.launch.torchrun import one_line, worker_begins\nworker_begins()\n"
        "print(one_line(2, 'items: 3 ids are unknown'), flush=True)\nsys.exit(2)\n"
    )
    process = launching.start({**request, "module": "refusing"}, launching.settings(max_restarts=3))
    assert process.wait() == 2, process.said
    assert process.said.count("made in namespace") == 1
    assert "error: items: 3 ids are unknown" in process.said
    assert launching.jobs() == []


@pytest.fixture
def elsewhere(cluster: TestCluster, images: Images, workspace: Workspace) -> Iterator[Launching]:
    """In a namespace of its own, whose limits disturb no other test."""
    made = Launching(cluster=cluster, images=images, workspace=workspace)
    made.prepare()
    yield made
    made.close()


def test_a_quota_that_would_be_exceeded_is_named_before_anything_is_made(elsewhere: Launching) -> None:
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "1"}}}
    elsewhere.cluster.core.create_namespaced_resource_quota(elsewhere.workspace.namespace, quota)
    process = elsewhere.start(elsewhere.job("failing", "1", num_processes=2), elsewhere.settings(nodes=2))
    said = ended(process)
    assert "small" in said
    assert "pods" in said
    assert elsewhere.jobs() == []


def test_pods_that_the_operator_may_not_make_are_an_early_error(elsewhere: Launching) -> None:
    limit = {"metadata": {"name": "tiny"}, "spec": {"limits": [{"type": "Container", "max": {"memory": "8Mi"}}]}}
    elsewhere.cluster.core.create_namespaced_limit_range(elsewhere.workspace.namespace, limit)
    process = elsewhere.start(elsewhere.job("failing", "1"), elsewhere.settings(resources={"memory": "64Mi"}))
    error = ended(process).partition("error: ")[2]
    assert "maximum memory usage per Container is 8Mi" in error
    assert elsewhere.jobs() == []
