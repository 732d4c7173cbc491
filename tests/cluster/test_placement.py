"""Eight-node EFA jobs on fictional p5.48xlarge nodes, through the real operator and the real scheduler."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clrflow.errors import ClrflowError
from clrflow.launch import launch
from clrflow.launch.cluster.api import Cluster
from clrflow.launch.cluster.placement import NoRoom, choose_zone
from clrflow.launch.settings import LaunchSettings
from tests.cluster.conftest import TestCluster, eventually
from tests.cluster.jobs_under_test import client_in, create, fake_p5, join_group, rendered, request_of

pytestmark = pytest.mark.cluster


@pytest.fixture
def api(cluster: TestCluster, namespace: str) -> Cluster:
    return client_in(cluster, namespace)


@pytest.fixture
def zones(cluster: TestCluster, api: Cluster, fake_nodes: Callable[..., list[str]]) -> Iterator[Callable[..., str]]:
    """`zones(a=7, b=8)` makes so many nodes in zones a and b and returns the group that they are."""

    def make(**counts: int) -> str:
        group = uuid.uuid4().hex[:8]
        for zone, count in counts.items():
            join_group(cluster, fake_nodes(count, zone=zone), group)
        return group

    yield make
    # Before their nodes: pods whose node is gone stay for a minute.
    api.call("DELETE", api.custom("kubeflow.org", "v1", "pytorchjobs"))
    eventually(lambda: not cluster.core.list_namespaced_pod(api.namespace).items, within_s=20, what="end of the fake pods")


def pods_of(cluster: TestCluster, job: dict[str, Any]) -> list[Any]:
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    return list(cluster.core.list_namespaced_pod(namespace, label_selector=f"clrflow/job={name}").items)


def all_running(cluster: TestCluster, job: dict[str, Any], count: int) -> list[Any]:
    def found() -> list[Any] | None:
        running = [pod for pod in pods_of(cluster, job) if pod.status.phase == "Running"]
        return running if len(running) == count else None

    return list(eventually(found, within_s=30, what=f"{count} running pods of {job['metadata']['name']}"))


def zone_of_nodes(cluster: TestCluster, pods: list[Any]) -> set[str]:
    return {cluster.core.read_node(pod.spec.node_name).metadata.labels["topology.kubernetes.io/zone"] for pod in pods}


def waiting_of(cluster: TestCluster, job: dict[str, Any]) -> list[Any]:
    """What the scheduler says of the pods that it found no node for."""
    conditions = [one for pod in pods_of(cluster, job) if pod.status.phase == "Pending" for one in pod.status.conditions or []]
    return [one for one in conditions if one.type == "PodScheduled" and one.status == "False"]


def place_and_create(api: Cluster, chosen: LaunchSettings) -> dict[str, Any]:
    job = rendered(chosen, api, choose_zone(api, chosen).zone)
    create(api, chosen, job)
    return job


def test_with_7_free_in_a_and_8_in_b_eight_pods_land_one_a_node_in_b_with_all_devices(
    cluster: TestCluster, api: Cluster, zones: Callable[..., str]
) -> None:
    job = place_and_create(api, fake_p5(zones(a=7, b=8)))
    pods = all_running(cluster, job, 8)
    assert Counter(Counter(pod.spec.node_name for pod in pods).values()) == {1: 8}
    assert zone_of_nodes(cluster, pods) == {"b"}
    for pod in pods:
        limits = next(container for container in pod.spec.containers if container.name == "pytorch").resources.limits
        assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == ("8", "32")


def test_7_in_each_zone_are_refused_by_the_preflight_and_so_is_a_second_job_on_busy_nodes(
    cluster: TestCluster, api: Cluster, zones: Callable[..., str]
) -> None:
    group = zones(a=8, b=7)
    first = place_and_create(api, fake_p5(group))
    assert zone_of_nodes(cluster, all_running(cluster, first, 8)) == {"a"}
    with pytest.raises(NoRoom) as caught:
        choose_zone(api, fake_p5(group))
    assert "  a  0  8  8 only" in str(caught.value)
    assert "  b  7  8  -" in str(caught.value)
    assert len(pods_of(cluster, first)) == 8


def test_7_in_each_zone_let_an_autoscaled_job_wait_in_one_zone_with_the_schedulers_reason(
    cluster: TestCluster, api: Cluster, zones: Callable[..., str]
) -> None:
    chosen = fake_p5(zones(a=7, b=7), capacity="autoscaled")
    job = place_and_create(api, chosen)
    running = all_running(cluster, job, 7)
    eventually(lambda: [*waiting_of(cluster, job)], within_s=20, what="the scheduler's word on the eighth pod")
    (reason,) = waiting_of(cluster, job)
    assert len(zone_of_nodes(cluster, running)) == 1
    assert reason.reason == "Unschedulable"
    assert "didn't satisfy" in reason.message or "didn't match pod" in reason.message


def test_an_autoscaled_job_whose_last_node_never_comes_fails_after_its_timeout_and_is_deleted(
    cluster: TestCluster, api: Cluster, zones: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    chosen = fake_p5(zones(a=7, b=7), capacity="autoscaled", provision_timeout_s=12, namespace=api.namespace)
    with pytest.raises(
        ClrflowError, match=r"only 7 of 8 pods of job \S+ were scheduled.*launch\.provision_timeout_s=12: .*nodes are available"
    ):
        launch(request_of(chosen, str(tmp_path)), chosen)
    jobs = api.custom("kubeflow.org", "v1", "pytorchjobs")
    eventually(lambda: not api.call("GET", jobs)["items"], within_s=10, what="end of the job")


@pytest.fixture
def node_pool(cluster: TestCluster) -> Iterator[Callable[..., None]]:
    """`node_pool(group, gpus)`: a Karpenter NodePool of p5 nodes of that group, limited to so many GPUs."""
    pools = cluster.dynamic().resources.get(api_version="karpenter.sh/v1", kind="NodePool")
    made: list[str] = []

    def make(group: str, gpus: int) -> None:
        name = f"pool-{group}"
        reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "efa"}
        requirements = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5.48xlarge"]}]
        template = {
            "metadata": {"labels": {"clrflow.test/group": group}},
            "spec": {
                "nodeClassRef": reference,
                "requirements": requirements,
                "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
            },
        }
        pools.create(body={
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
            "spec": {"template": template, "limits": {"nvidia.com/gpu": str(gpus)}},
        })  # fmt: skip
        made.append(name)

    yield make
    for name in made:
        pools.delete(name=name)


def test_a_node_pool_that_is_too_small_refuses_an_autoscaled_job_before_it_waits(
    api: Cluster, zones: Callable[..., str], node_pool: Callable[..., None]
) -> None:
    group = zones(a=2)
    node_pool(group, 40)
    assert choose_zone(api, fake_p5(group, capacity="autoscaled", nodes=7)).notes == ()
    started = time.monotonic()
    with pytest.raises(NoRoom, match=r"2 are free now .*5 more \(0 of its limit 40 nvidia\.com/gpu in use\)"):
        choose_zone(api, fake_p5(group, capacity="autoscaled"))
    assert time.monotonic() - started < 5


def test_no_node_with_efa_is_an_exact_refusal(cluster: TestCluster, api: Cluster, fake_nodes: Callable[..., list[str]]) -> None:
    group = uuid.uuid4().hex[:8]
    join_group(cluster, fake_nodes(8, efa=0), group)
    with pytest.raises(NoRoom, match=r"No such node offers vpc\.amazonaws\.com/efa: install its device plugin"):
        choose_zone(api, fake_p5(group))
