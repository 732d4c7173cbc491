"""A zone with room for all pods is picked, or the job is refused with what each zone lacks; tests/cluster does it with the real scheduler."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from clrflow.launch.cluster.nodes import Need, pod_requests, read_nodes, tolerates
from clrflow.launch.cluster.placement import NoRoom, check_pools, pick_zone
from clrflow.launch.cluster.quantity import parse_quantity
from clrflow.launch.settings import LaunchSettings

P5 = {"cpu": "192", "memory": "2048Gi", "pods": "110", "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5128Mi"}


def job(**changes: Any) -> LaunchSettings:
    given = {"launcher": "pytorchjob", "image": "i:1", "nodes": 8, "instance": "p5.48xlarge", "transport": "efa", **changes}
    return LaunchSettings.model_validate(given)


def node(name: str, zone: str = "a", allocatable: dict[str, str] = P5, layers: tuple[str, ...] = (), **spec: Any) -> dict[str, Any]:
    labels = {"topology.kubernetes.io/zone": zone, **{f"topology.k8s.aws/network-node-layer-{n}": at for n, at in enumerate(layers, 1)}}
    ready = spec.pop("ready", "True")
    taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, **spec},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready}]},
    }


def zone_of(count: int, zone: str, **rest: Any) -> list[dict[str, Any]]:
    return [node(f"{zone}{n}", zone, **rest) for n in range(count)]


def pod_on(name: str, **requests: str) -> dict[str, Any]:
    return {"spec": {"nodeName": name, "containers": [{"resources": {"requests": requests}}]}}


def pick(settings: LaunchSettings, nodes: list[dict[str, Any]], pods: list[dict[str, Any]] | None = None) -> str:
    need = Need.of(settings)
    return pick_zone(read_nodes(nodes, pods or [], need), settings, need)


def refusal(settings: LaunchSettings, nodes: list[dict[str, Any]], pods: list[dict[str, Any]] | None = None) -> str:
    with pytest.raises(NoRoom) as caught:
        pick(settings, nodes, pods)
    return str(caught.value)


def test_with_7_free_in_a_and_8_in_b_it_goes_to_b() -> None:
    assert pick(job(), zone_of(7, "a") + zone_of(8, "b")) == "b"


def test_7_in_each_are_refused_with_a_table_of_the_zones() -> None:
    message = refusal(job(), zone_of(7, "a") + zone_of(7, "b"))
    assert "launch.nodes=8 of launch.instance=p5.48xlarge" in message
    assert "32 vpc.amazonaws.com/efa" in message
    assert "  a  7  8  -" in message
    assert "  b  7  8  -" in message
    assert "launch.capacity=autoscaled" in message


def test_a_node_that_another_job_uses_is_not_free() -> None:
    busy = pod_on("a0", **{"nvidia.com/gpu": "1"})
    message = refusal(job(), zone_of(8, "a"), [busy])
    assert "  a  7  8  1 only 7 nvidia.com/gpu free" in message
    assert pick(job(nodes=7), zone_of(8, "a"), [busy]) == "a"


def test_the_nodes_own_small_pods_do_not_take_a_node() -> None:
    agents = [pod_on(f"a{n}", cpu="500m", memory="1Gi") for n in range(8)]
    assert pick(job(), zone_of(8, "a"), agents) == "a"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (node("a7", ready="False"), "1 not ready"),
        (node("a7", ready="Unknown"), "1 not ready"),
        (node("a7", unschedulable=True), "1 cordoned"),
        (node("a7", taints=[{"key": "maintenance", "value": "x", "effect": "NoExecute"}]), "1 taint maintenance not tolerated"),
        (node("a7", allocatable={**P5, "vpc.amazonaws.com/efa": "4"}), "1 only 4 vpc.amazonaws.com/efa allocatable"),
    ],
)
def test_a_node_that_takes_no_pod_is_counted_out_and_named(broken: dict[str, Any], why: str) -> None:
    assert why in refusal(job(), [*zone_of(7, "a"), broken])


def test_nodes_without_efa_lead_to_the_device_plugin() -> None:
    bare = {name: amount for name, amount in P5.items() if name != "vpc.amazonaws.com/efa"}
    message = refusal(job(), zone_of(8, "a", allocatable=bare))
    assert "No such node offers vpc.amazonaws.com/efa: install its device plugin" in message


def test_no_node_of_the_type_at_all_says_what_was_looked_for() -> None:
    assert "no node with node.kubernetes.io/instance-type=p5.48xlarge" in refusal(job(), [])


def test_a_fixed_zone_is_kept_and_one_without_such_nodes_is_refused_with_those_that_have_them() -> None:
    nodes = zone_of(8, "a") + zone_of(9, "b")
    assert pick(job(zone="a"), nodes) == "a"
    assert "launch.zone=c: no node of the job's kind is there; they are in a, b" in refusal(job(zone="c"), nodes)


def test_of_two_zones_the_one_on_fewer_switches_is_taken() -> None:
    # Zone a has more room, but its nodes hang two by two on four switches; eight of b's hang on two.
    spread = [node(f"a{n}", "a", layers=("1", "2", f"switch-{n // 2}")) for n in range(10)]
    close = [node(f"b{n}", "b", layers=("1", "2", f"switch-{n // 4}")) for n in range(8)]
    assert pick(job(), spread + close) == "b"


def test_of_two_equal_zones_the_roomier_one_is_taken() -> None:
    assert pick(job(), zone_of(8, "a") + zone_of(9, "b")) == "b"


def test_cpu_pods_may_share_a_node_and_an_unlabelled_one_has_no_zone_to_pin() -> None:
    small = node("only", allocatable={"cpu": "4", "memory": "16Gi", "pods": "110"}, taints=[])
    del small["metadata"]["labels"]["topology.kubernetes.io/zone"]
    settings = job(nodes=3, instance="", transport="tcp", resources={"cpu": "1"})
    assert pick(settings, [small]) == ""
    assert "  (none)  3  4  -" in refusal(
        job(nodes=4, instance="", transport="tcp", resources={"cpu": "1"}), [small], [pod_on("only", cpu="1")]
    )


def pool(name: str = "efa", limits: dict[str, str] | None = None, used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    requirements = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5.48xlarge"]}]
    template = {"spec": {"requirements": requirements, "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}], **spec}}
    return {"metadata": {"name": name}, "spec": {"template": template, "limits": limits or {}}, "status": {"resources": used or {}}}


def notes(pools: list[dict[str, Any]], nodes: list[dict[str, Any]], **changes: Any) -> list[str]:
    settings = job(capacity="autoscaled", **changes)
    need = Need.of(settings)
    return check_pools(pools, read_nodes(nodes, [], need), settings, need)


def test_a_node_pool_that_may_grow_far_enough_lets_the_job_wait_for_it() -> None:
    assert notes([pool(limits={"nvidia.com/gpu": "64"})], []) == []
    assert notes([pool()], []) == []
    # 3 nodes are there already, so 5 more are enough.
    assert notes([pool(limits={"nvidia.com/gpu": "64"}, used={"nvidia.com/gpu": "24"})], zone_of(3, "a")) == []


@pytest.mark.parametrize("limits", [{"nvidia.com/gpu": "63"}, {"nodes": "7"}, {"cpu": "1000"}])
def test_a_node_pool_that_is_too_small_is_refused_with_its_limit(limits: dict[str, str]) -> None:
    with pytest.raises(NoRoom) as caught:
        notes([pool(limits=limits)], [])
    assert f"of its limit {next(iter(limits.values()))} {next(iter(limits))} in use" in str(caught.value)
    assert "Raise the NodePool's spec.limits" in str(caught.value)


def test_a_pool_for_other_pods_does_not_count() -> None:
    other = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}]
    assert "no Karpenter NodePool is made for such pods" in notes([pool(requirements=other)], [])[0]
    assert "no Karpenter NodePool" in notes([pool(taints=[{"key": "other", "effect": "NoSchedule"}])], [])[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", Fraction(1, 2)), ("64Gi", 64 * 2**30), ("8", 8), ("1e3", 1000), ("1.5Gi", 3 * 2**29), ("100M", 10**8), (2, 2), ("0", 0)],
)
def test_quantities_are_exact(text: str | int, value: Fraction | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "lots", "8 Gi", "1GiB", "--1", "1e9999", "0x10"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no Kubernetes quantity"):
        parse_quantity(text)


def test_init_containers_count_by_their_largest_and_sidecars_stay() -> None:
    spec = {
        "containers": [{"resources": {"requests": {"cpu": "1"}}}, {"resources": {"requests": {"cpu": "500m"}}}, {}],
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}},
            {"resources": {"requests": {"cpu": "3", "memory": "1Gi"}}},
        ],
        "overhead": {"cpu": "100m"},
    }
    assert pod_requests(spec) == {"cpu": Fraction(31, 10), "memory": 2**30}


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Equal", "value": "v"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_taint_is_tolerated_by_the_schedulers_rule(toleration: dict[str, str], fits: bool) -> None:
    assert tolerates(toleration, {"key": "k", "value": "v", "effect": "NoSchedule"}) is fits
