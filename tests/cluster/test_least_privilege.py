"""With the base installed, each account does what it is for and is refused all else; asked of the API server, not of the Role's text."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.plan import Backend
from clrflow.launch.cluster.pytorchjob import PyTorchJobBackend
from clrflow.launch.cluster.rights import rights
from clrflow.launch.cluster.trainjob import TrainJobBackend
from tests.cluster.conftest import Images, TestCluster, eventually
from tests.cluster.manifests import Applier, build

pytestmark = pytest.mark.cluster

JOBS = "/apis/kubeflow.org/v1/namespaces/{here}/pytorchjobs"
TRAINJOBS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{here}/trainjobs"
CORE = "/api/v1/namespaces/{here}"
LOOKS = {
    "list jobs": JOBS,
    "list TrainJobs": TRAINJOBS,
    "list pods": f"{CORE}/pods",
    "list events": f"{CORE}/events",
    "list quotas": f"{CORE}/resourcequotas",
    "list limits": f"{CORE}/limitranges",
    "read a claim": f"{CORE}/persistentvolumeclaims/none",
    "read an account": f"{CORE}/serviceaccounts/clrflow-job",
    "read the Workflow": "/apis/argoproj.io/v1alpha1/namespaces/{here}/workflows/none",
    "read a job": f"{JOBS}/none",
    "read a log": f"{CORE}/pods/none/log",
    "list nodes": "/api/v1/nodes",
    "list pods everywhere": "/api/v1/pods",
    "list node pools": "/apis/karpenter.sh/v1/nodepools",
}
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "localhost/base:1"}]}}
REFUSED: dict[str, tuple[str, str, Any]] = {
    "start a pod": ("POST", f"{CORE}/pods", POD),
    "remove a pod": ("DELETE", f"{CORE}/pods/none", None),
    "enter a pod": ("POST", f"{CORE}/pods/none/exec", None),
    "forward a port": ("POST", f"{CORE}/pods/none/portforward", None),
    "list Secrets": ("GET", f"{CORE}/secrets", None),
    "read a Secret": ("GET", f"{CORE}/secrets/none", None),
    "make a Secret": ("POST", f"{CORE}/secrets", {"metadata": {"name": "s"}}),
    "take another account's token": (
        "POST", f"{CORE}/serviceaccounts/clrflow-job/token", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    ),
    "widen its rights": ("PATCH", "/apis/rbac.authorization.k8s.io/v1/namespaces/{here}/roles/clrflow-launcher", {"rules": []}),
    "bind a role": ("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/{here}/rolebindings", {"metadata": {"name": "b"}}),
    "change a job": ("PATCH", f"{JOBS}/none", {"spec": {}}),
    "claim a job succeeded": ("PATCH", f"{JOBS}/none/status", {"status": {}}),
    "remove all jobs at once": ("DELETE", JOBS, None),
    "remove the Workflow": ("DELETE", "/apis/argoproj.io/v1alpha1/namespaces/{here}/workflows/none", None),
    "change the settings": ("PATCH", f"{CORE}/configmaps/clrflow-config", {"data": {}}),
    "remove a claim": ("DELETE", f"{CORE}/persistentvolumeclaims/none", None),
    "remove the namespace": ("DELETE", "/api/v1/namespaces/{here}", None),
    "taint a node": ("PATCH", "/api/v1/nodes/none", {"spec": {"unschedulable": True}}),
    "see another namespace's jobs": ("GET", "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs", None),
    "make a job in another namespace": ("POST", "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs", {"metadata": {"name": "j"}}),
    "see jobs everywhere": ("GET", "/apis/kubeflow.org/v1/pytorchjobs", None),
    "read a log in another namespace": ("GET", "/api/v1/namespaces/default/pods/none/log", None),
}  # fmt: skip
ACCOUNTS_WITHOUT_RIGHTS = ("clrflow-job", "clrflow-serving")


@pytest.fixture(scope="module")
def here(cluster: TestCluster, module_namespace: str) -> Iterator[str]:
    """A namespace with the base and the right to look at nodes."""
    applier = Applier(cluster)
    documents = build(cluster, "base", "components/node-reader", namespace=module_namespace)
    for document in documents:
        applier.apply(document)
    yield module_namespace
    for document in documents:
        if document["kind"].startswith("Cluster"):
            applier.delete(document)


def acting_as(cluster: TestCluster, account: str, namespace: str) -> Cluster:
    """A client whose calls the server judges as that service account's."""
    api = client.ApiClient(copy.copy(cluster.api.configuration))
    api.set_default_header("Impersonate-User", f"system:serviceaccount:{namespace}:{account}")
    return Cluster(api, namespace)


def answer(acting: Cluster, method: str, path: str, body: Any = None) -> int:
    """The status, 200 for any success; asks as a dry run wherever something could change."""
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"
    query = {} if method == "GET" else {"dryRun": "All"}
    try:
        acting.call(method, path.format(here=acting.namespace), body=body, query=query, content_type=content, patience_s=0)
    except ApiError as error:
        return error.status
    return 200


@pytest.mark.parametrize("what", LOOKS)
def test_the_launcher_may(what: str, cluster: TestCluster, here: str) -> None:
    launcher = acting_as(cluster, "clrflow-launcher", here)
    assert answer(launcher, "GET", LOOKS[what]) in (200, 404)  # 404: it may look, there is none


@pytest.mark.parametrize("what", REFUSED)
def test_the_launcher_may_not(what: str, cluster: TestCluster, here: str) -> None:
    assert answer(acting_as(cluster, "clrflow-launcher", here), *REFUSED[what]) == 403


@pytest.mark.parametrize("account", ACCOUNTS_WITHOUT_RIGHTS)
def test_an_account_that_only_computes_may_do_nothing(account: str, cluster: TestCluster, here: str) -> None:
    acting = acting_as(cluster, account, here)
    calls = {what: ("GET", path, None) for what, path in LOOKS.items()} | REFUSED
    assert {what for what, call in calls.items() if answer(acting, *call) != 403} == set()


@pytest.mark.parametrize("backend", [PyTorchJobBackend(), TrainJobBackend("torch-distributed")], ids=lambda backend: backend.kind)
def test_the_launchers_own_preflight_lacks_no_right_and_the_jobs_account_lacks_them(
    backend: Backend, cluster: TestCluster, here: str
) -> None:
    assert {finding.state for finding in rights(acting_as(cluster, "clrflow-launcher", here), backend)} == {"ok"}
    assert "missing" in {finding.state for finding in rights(acting_as(cluster, "clrflow-job", here), backend)}


def job(image: str) -> dict[str, Any]:
    """A master and a worker, as careful pods of user 10001; the worker gets the operator's init container."""
    contained = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    container = {"name": "pytorch", "image": image, "command": ["sh", "-c", "echo done"], "securityContext": contained}
    security = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"serviceAccountName": "clrflow-job", "securityContext": security, "containers": [container]}
    replica = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": spec}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "allowed"},
        "spec": {"runPolicy": {"cleanPodPolicy": "None"}, "pytorchReplicaSpecs": {"Master": replica, "Worker": replica}},
    }


def test_the_launcher_makes_follows_and_removes_a_job_whose_pods_the_namespace_lets_in(
    cluster: TestCluster, here: str, images: Images
) -> None:
    launcher = acting_as(cluster, "clrflow-launcher", here)
    jobs, name = launcher.custom("kubeflow.org", "v1", "pytorchjobs"), "allowed"
    launcher.call("POST", jobs, body=job(images.base), patience_s=0)

    def conditions() -> set[str]:
        listed = launcher.call("GET", f"{jobs}/{name}").get("status", {}).get("conditions", ())
        return {each["type"] for each in listed if each["status"] == "True"}

    eventually(lambda: "Succeeded" in conditions(), within_s=90, what="job Succeeded")
    pods = launcher.call("GET", launcher.core("pods"), query={"labelSelector": f"training.kubeflow.org/job-name={name}"})["items"]
    assert len(pods) == 2
    with launcher.lines(launcher.core("pods", f"{name}-master-0", "log")) as lines:
        assert list(lines) == ["done"]
    launcher.call("DELETE", f"{jobs}/{name}")
    eventually(lambda: answer(launcher, "GET", f"{jobs}/{name}") == 404, within_s=30, what="end of the job")
