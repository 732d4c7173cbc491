"""Every overlay and component is what an API server with the real CRDs takes, field by field; the one for one machine is installed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clrflow.launch.cluster.api import ApiError
from tests.cluster.conftest import TestCluster, eventually
from tests.cluster.manifests import MANIFESTS, Applier, build, called

pytestmark = pytest.mark.cluster

INSTANCES = sorted(path.name for path in (MANIFESTS / "overlays/eks/instances").iterdir())
BUILDS: dict[str, tuple[str, ...]] = {
    "base": ("base",),
    "kind": ("overlays/kind",),
    "kfp": ("overlays/kfp",),
    "eks": ("overlays/eks",),
    **{f"eks-{name}": ("overlays/eks", f"overlays/eks/instances/{name}") for name in INSTANCES},
    "eks-reserved": ("overlays/eks", "overlays/eks/capacity-reservation"),
    "kueue": ("overlays/kind", "components/kueue"),
    "kserve": ("overlays/kind", "components/kserve"),
    "spark": ("overlays/kind", "components/spark"),
}
CUSTOM = {
    "NodePool": (("overlays/eks",), "spec", "limits"),
    "NodeOverlay": (("overlays/eks",), "spec", "capacity"),
    "EC2NodeClass": (("overlays/eks",), "spec", "networkInterfaces"),
    "ResourceFlavor": (("overlays/kind", "components/kueue"), "spec", "nodeLabels"),
    "ClusterQueue": (("overlays/kind", "components/kueue"), "spec", "resourceGroups"),
    "LocalQueue": (("overlays/kind", "components/kueue"), "spec", "clusterQueue"),
    "InferenceService": (("overlays/kind", "components/kserve"), "spec", "predictor"),
    "SparkApplication": (("overlays/kind", "components/spark"), "spec", "dynamicAllocation"),
}
"""Kinds of other projects: where one is built, and a field that the manifest uses."""


@pytest.fixture(scope="module")
def applier(cluster: TestCluster) -> Applier:
    return Applier(cluster)


@pytest.fixture
def known(cluster: TestCluster, applier: Applier) -> Callable[[list[dict[str, Any]]], None]:
    """Skips on a foreign cluster that lacks a CRD; the local one must have them all."""

    def check(documents: list[dict[str, Any]]) -> None:
        unknown = sorted({f"{document['kind']} of {document['apiVersion']}" for document in documents if not applier.served(document)})
        if unknown and not cluster.is_local:
            pytest.skip(f"this cluster has no {', '.join(unknown)}")
        assert unknown == []

    return check


def moved(documents: list[dict[str, Any]], namespace: str) -> list[dict[str, Any]]:
    """Into a namespace that exists, as a dry run needs; nothing else changes."""
    documents = copy.deepcopy(documents)
    for document in documents:
        if document["metadata"].get("namespace") in ("clrflow", "kubeflow"):
            document["metadata"]["namespace"] = namespace
    return documents


@pytest.mark.parametrize("name", BUILDS)
def test_the_api_server_takes_every_object(
    name: str, cluster: TestCluster, applier: Applier, module_namespace: str, known: Callable[..., None]
) -> None:
    documents = moved(build(cluster, *BUILDS[name]), module_namespace)
    known(documents)
    refused = []
    for document in documents:
        try:
            applier.apply(document, dry_run=True)
        except ApiError as error:
            refused.append(f"{called(document)}: {error}")
    assert refused == []


@pytest.mark.parametrize("kind", CUSTOM)
def test_a_field_that_a_crd_lacks_is_refused(
    kind: str, cluster: TestCluster, applier: Applier, module_namespace: str, known: Callable[..., None]
) -> None:
    folders, part, field = CUSTOM[kind]
    (document,) = [each for each in moved(build(cluster, *folders), module_namespace) if each["kind"] == kind]
    known([document])
    document[part][f"{field}Renamed"] = document[part].pop(field)
    with pytest.raises(ApiError, match=f"{field}Renamed"):
        applier.apply(document, dry_run=True)


@pytest.mark.parametrize("name", BUILDS)
def test_what_belongs_together_has_one_namespace(name: str, cluster: TestCluster) -> None:
    documents = build(cluster, *BUILDS[name])
    here = "kubeflow" if name == "kfp" else "clrflow"
    for document in documents:
        plugin = document["kind"] == "DaemonSet"
        assert document["metadata"].get("namespace", here) == ("kube-system" if plugin else here), called(document)
        for subject in document.get("subjects", ()):
            assert subject["namespace"] == here, called(document)


def test_another_namespace_reaches_all_that_names_it(cluster: TestCluster) -> None:
    documents = build(cluster, "overlays/kind", "components/spark", "components/kserve", namespace="elsewhere")
    (namespace,) = [document["metadata"]["name"] for document in documents if document["kind"] == "Namespace"]
    assert namespace == "elsewhere"
    assert {document["metadata"].get("namespace", "elsewhere") for document in documents} == {"elsewhere"}
    assert {subject["namespace"] for document in documents for subject in document.get("subjects", ())} == {"elsewhere"}


@pytest.fixture
def installed(cluster: TestCluster, applier: Applier, namespace: str) -> Iterator[list[dict[str, Any]]]:
    """overlays/kind for real, in a namespace of its own."""
    documents = build(cluster, "overlays/kind", namespace=namespace)
    for document in documents:
        applier.apply(document)
    yield documents
    for document in reversed(documents):
        applier.delete(document)


def test_the_overlay_for_one_machine_can_be_installed_twice(
    cluster: TestCluster, applier: Applier, namespace: str, installed: list[dict[str, Any]]
) -> None:
    def versions() -> dict[str, str]:
        return {called(document): applier.apply(document)["metadata"]["resourceVersion"] for document in installed}

    def bound() -> bool:
        return bool(cluster.core.read_namespaced_persistent_volume_claim("workspace", namespace).status.phase == "Bound")

    eventually(bound, within_s=20, what="claim workspace bound to its volume")
    assert versions() == versions()


def test_its_namespace_refuses_pods_that_reach_for_the_node(cluster: TestCluster, namespace: str, installed: list[dict[str, Any]]) -> None:
    pod: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "localhost/base:1"}]}}
    cluster.core.create_namespaced_pod(namespace, pod, dry_run="All")
    pod["spec"]["volumes"] = [{"name": "root", "hostPath": {"path": "/"}}]
    with pytest.raises(Exception, match="violates PodSecurity"):
        cluster.core.create_namespaced_pod(namespace, pod, dry_run="All")


def test_the_settings_in_the_cluster_are_the_file(cluster: TestCluster, namespace: str, installed: list[dict[str, Any]]) -> None:
    stored = cluster.core.read_namespaced_config_map("clrflow-config", namespace).data
    assert stored == {"clrflow.yaml": Path(MANIFESTS / "overlays/kind/clrflow.yaml").read_text()}
