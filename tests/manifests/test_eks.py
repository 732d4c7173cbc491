"""EKS: nodes have what the launcher's table says that pods of their type ask for."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from clrflow.launch.cluster.instances import EFA, GPU, HUGE_PAGES, INSTANCES
from tests.manifests.files import MANIFESTS, documents, kustomization, the

TYPES = sorted(path.name for path in (MANIFESTS / "overlays/eks/instances").iterdir())
NODES = 8
EKSCTL = documents(MANIFESTS / "overlays/eks/managed-node-group.eksctl.yaml")[0]
FIRST_CARD_WITHOUT_EFA = {"p6-b300.48xlarge"}
"""Its first network card is ENA's alone."""


def patches(instance: str) -> dict[str, dict[str, Any]]:
    """kind → path → value."""
    found = {}
    for patch in kustomization(f"overlays/eks/instances/{instance}")["patches"]:
        found[patch["target"]["kind"]] = {step["path"]: step["value"] for step in yaml.safe_load(patch["patch"])}
    return found


def test_the_families_that_are_promised_are_there() -> None:
    assert {name.split(".")[0] for name in TYPES} >= {"p4d", "p5", "p5e", "p5en", "p6-b200", "p6-b300"}


@pytest.mark.parametrize("instance", TYPES)
def test_a_node_has_as_many_efa_interfaces_as_its_pod_asks_for(instance: str) -> None:
    interfaces = patches(instance)["EC2NodeClass"]["/spec/networkInterfaces"]
    efa = [(each["networkCardIndex"], each["deviceIndex"]) for each in interfaces if each["interfaceType"] == "efa-only"]
    assert len(efa) == INSTANCES[instance].efa
    # The first interface has the node's address; a card holds one EFA device, the first card's beside that interface.
    assert interfaces[0] == {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"}
    assert len(interfaces) == len(efa) + 1
    first = [] if instance in FIRST_CARD_WITHOUT_EFA else [(0, 1)]
    assert efa == first + [(card, 0) for card in range(1, len(efa) + 1 - len(first))]


@pytest.mark.parametrize("instance", TYPES)
def test_pool_and_huge_pages_are_those_of_the_type(instance: str) -> None:
    pool, overlay = patches(instance)["NodePool"], patches(instance)["NodeOverlay"]
    assert pool["/spec/template/spec/requirements/0/values"] == [instance]
    assert pool["/spec/limits/nvidia.com~1gpu"] == str(NODES * INSTANCES[instance].gpus)
    assert overlay["/spec/requirements/0/values"] == [instance]
    assert overlay["/spec/capacity/hugepages-2Mi"] == f"{INSTANCES[instance].huge_pages_mib}Mi"


def test_nodes_reserve_the_huge_pages_before_the_kubelet_counts_them() -> None:
    largest = max(instance.huge_pages_mib for instance in INSTANCES.values())
    told = the("EC2NodeClass", "clrflow-efa")["spec"]["userData"], *EKSCTL["managedNodeGroups"][1]["preBootstrapCommands"]
    for text in told:
        (pages,) = re.findall(r"vm\.nr_hugepages ?= ?(\d+)", text)
        assert 2 * int(pages) >= largest


def test_the_pool_is_in_one_zone_and_one_placement_group() -> None:
    requirements = {each["key"]: each["values"] for each in the("NodePool", "clrflow-efa")["spec"]["template"]["spec"]["requirements"]}
    assert len(requirements["topology.kubernetes.io/zone"]) == 1
    assert the("EC2NodeClass", "clrflow-efa")["spec"]["placementGroupSelector"] == {"name": "clrflow-efa"}
    group = EKSCTL["managedNodeGroups"][1]
    assert len(group["availabilityZones"]) == 1
    assert group["efaEnabled"] is True
    assert group["placement"] == {"groupName": "clrflow-efa"}


@pytest.mark.parametrize("plugin", ["clrflow-nvidia-device-plugin", "clrflow-efa-device-plugin"])
def test_device_plugins_run_on_every_type_of_the_table(plugin: str) -> None:
    pod = the("DaemonSet", plugin)["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == list(INSTANCES)


def test_the_queue_covers_eight_nodes_of_all_that_a_pod_asks_for() -> None:
    (group,) = the("ClusterQueue", "clrflow")["spec"]["resourceGroups"]
    quotas = {each["name"]: str(each["nominalQuota"]) for each in group["flavors"][0]["resources"]}
    node = INSTANCES["p5.48xlarge"]
    assert set(group["coveredResources"]) == set(node.pod_resources(efa=True)) == set(quotas)
    assert quotas[GPU] == str(NODES * node.gpus)
    assert quotas[EFA] == str(NODES * node.efa)
    assert quotas[HUGE_PAGES] == f"{NODES * node.huge_pages_mib}Mi"
    assert quotas["cpu"] == str(NODES * node.vcpus)
    assert quotas["memory"] == f"{NODES * node.memory_gib}Gi"


def test_credentials_for_s3_are_given_to_exactly_the_accounts_that_need_them() -> None:
    by_annotation = {patch["target"]["name"] for patch in kustomization("overlays/eks/irsa")["patches"]}
    by_pod_identity = {each["serviceAccountName"] for each in EKSCTL["iam"]["podIdentityAssociations"]}
    assert by_annotation == by_pod_identity == {"clrflow-job", "clrflow-launcher", "clrflow-serving"}


def test_the_documented_table_is_the_launchers() -> None:
    page = (MANIFESTS.parent / "docs/kubernetes.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if re.match(r"\| [a-z0-9-]+\.\d*xlarge", line)
    ]
    assert {row[0]: row[1:4] for row in rows} == {
        name: [str(node.gpus), str(node.efa), f"{node.huge_pages_mib}Mi"] for name, node in INSTANCES.items()
    }
    assert [row[0] for row in rows if row[4]] == TYPES
