"""What tests of rendering and placement share: a request, settings, and the launcher's own client in a namespace."""

from __future__ import annotations

import uuid
from typing import Any

from clrflow.launch.cluster.api import Cluster
from clrflow.launch.cluster.identity import Identity
from clrflow.launch.cluster.planning import backend_of, plan_job
from clrflow.launch.request import JobRequest
from clrflow.launch.settings import LaunchSettings
from tests.cluster.conftest import TestCluster, eventually

SERVICE_ACCOUNT = "clrflow-job"
GROUP_LABEL = "clrflow.test/group"


def client_in(cluster: TestCluster, namespace: str) -> Cluster:
    """The launcher's client, with the service account that its pods run as."""
    cluster.core.create_namespaced_service_account(namespace, {"metadata": {"name": SERVICE_ACCOUNT}})
    return Cluster(cluster.api, namespace)


def settings(**changes: Any) -> LaunchSettings:
    return LaunchSettings.model_validate({"launcher": "pytorchjob", "image": "localhost/base:1", "nodes": 2, **changes})


def fake_p5(group: str, **changes: Any) -> LaunchSettings:
    """An 8-node EFA job that only nodes of `group` take."""
    given: dict[str, Any] = {
        "nodes": 8, "instance": "p5.48xlarge", "transport": "efa", "node_selector": {GROUP_LABEL: group},
        "tolerations": [{"key": "kwok.x-k8s.io/node"}],
    }  # fmt: skip
    return settings(**{**given, **changes})


def join_group(cluster: TestCluster, nodes: list[str], group: str) -> None:
    """Label them; and wait until new nodes have lost the taint that they carry until the node controller has seen them Ready."""

    def settled(name: str) -> bool:
        return not any(taint.key.startswith("node.kubernetes.io/") for taint in cluster.core.read_node(name).spec.taints or ())

    for name in nodes:
        cluster.core.patch_node(name, {"metadata": {"labels": {GROUP_LABEL: group}}})
        eventually(lambda name=name: settled(name), within_s=30, what=f"node {name} without the taint of a new node")


def request_of(chosen: LaunchSettings, folder: str = "/w") -> JobRequest:
    """One process a GPU (or a node), for a run that nobody else has."""
    return JobRequest(
        what="training", module="clrflow.training", arguments=(f"{folder}/job.json",), num_processes=chosen.nodes * (chosen.gpus_per_node or 1),
        run_name=f"run-{uuid.uuid4().hex[:6]}", step="train", key="5e0f", folder=folder, output=f"{folder}/curves.json",
    )  # fmt: skip


def rendered(chosen: LaunchSettings, api: Cluster, zone: str = "", identity: Identity | None = None) -> dict[str, Any]:
    plan = plan_job(request_of(chosen), chosen, namespace=api.namespace, identity=identity or Identity(), zone=zone)
    return backend_of(chosen).render(plan)


def create(api: Cluster, chosen: LaunchSettings, job: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
    """POST it; an unknown field is refused."""
    backend = backend_of(chosen)
    query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
    answer: dict[str, Any] = api.call("POST", api.custom(backend.group, backend.version, backend.plural), body=job, query=query)
    return answer
