"""What is missing in the cluster is found, named and given a remedy before a job is made; and `clrflow doctor --cluster` says the same."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from typer.testing import CliRunner

from clrflow.launch.cluster import preflight, rights
from clrflow.launch.cluster.api import Cluster
from clrflow.launch.cluster.placement import choose_zone
from clrflow.launch.cluster.planning import backend_of
from clrflow.launch.cluster.pytorchjob import PyTorchJobBackend
from pipelines.cli import app
from tests.cluster.conftest import Images, TestCluster, Workspace, eventually
from tests.cluster.jobs_under_test import SERVICE_ACCOUNT, client_in, fake_p5, join_group, settings

pytestmark = pytest.mark.cluster


@pytest.fixture
def api(cluster: TestCluster, namespace: str) -> Cluster:
    return client_in(cluster, namespace)


def refusal(api: Cluster, **changes: Any) -> str:
    chosen = settings(**changes)
    with pytest.raises(preflight.PreflightError) as caught:
        preflight.check(api, backend_of(chosen), chosen)
    assert caught.value.exit_code == 1
    return str(caught.value)


def as_account(cluster: TestCluster, namespace: str, name: str, rules: list[dict[str, Any]]) -> Cluster:
    """A client with the token of a new service account that has these rights in its namespace."""
    cluster.core.create_namespaced_service_account(namespace, {"metadata": {"name": name}})
    rbac = client.RbacAuthorizationV1Api(cluster.api)
    rbac.create_namespaced_role(namespace, {"metadata": {"name": name}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    rbac.create_namespaced_role_binding(namespace, {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]})
    token = cluster.core.create_namespaced_service_account_token(name, namespace, {"spec": {"expirationSeconds": 600}}).status.token
    theirs = client.Configuration()
    ours = cluster.api.configuration
    theirs.host, theirs.ssl_ca_cert, theirs.verify_ssl = ours.host, ours.ssl_ca_cert, ours.verify_ssl
    theirs.api_key = {"authorization": f"Bearer {token}"}
    theirs.retries = False
    return Cluster(client.ApiClient(theirs), namespace)


def test_a_namespace_that_has_everything_passes(api: Cluster) -> None:
    preflight.check(api, PyTorchJobBackend(), settings())
    assert {finding.state for finding in preflight.findings(api, PyTorchJobBackend(), settings())} == {"ok"}


def test_all_that_is_missing_is_named_at_once(api: Cluster) -> None:
    message = refusal(
        api, service_account="nobody", pull_secrets=["registry"], volumes=[{"claim": "fsx", "path": "/mnt/fsx"}],
        secret_env=[{"name": "A", "secret": "keys", "key": "k"}],
    )  # fmt: skip
    for part in (
        f"can't run in namespace {api.namespace}, nothing was made",
        "launch.service_account=nobody does not exist",
        "launch.pull_secrets names registry",
        "launch.secret_env names keys",
        "launch.volumes names claim fsx",
    ):
        assert part in message


def test_a_trainjobs_pull_secrets_must_be_named_by_its_service_account(cluster: TestCluster, api: Cluster) -> None:
    cluster.core.create_namespaced_secret(api.namespace, {"metadata": {"name": "registry"}})
    lacking = "clrflow-job doesn't name the pull secret(s) registry"
    assert lacking in refusal(api, launcher="trainjob", pull_secrets=["registry"])
    cluster.core.patch_namespaced_service_account(SERVICE_ACCOUNT, api.namespace, {"imagePullSecrets": [{"name": "registry"}]})
    chosen = settings(launcher="trainjob", pull_secrets=["registry"])
    preflight.check(api, backend_of(chosen), chosen)


def test_a_secret_without_the_key_is_named_and_its_value_is_not_shown(cluster: TestCluster, api: Cluster) -> None:
    cluster.core.create_namespaced_secret(api.namespace, {"metadata": {"name": "keys"}, "stringData": {"other": "hunter2"}})
    message = refusal(api, secret_env=[{"name": "A", "secret": "keys", "key": "k"}])
    assert "Secret keys has no key k" in message
    assert "hunter2" not in message


def test_an_operator_that_serves_another_version_is_named_with_it(api: Cluster) -> None:
    class Newer(PyTorchJobBackend):
        version = "v2"

    with pytest.raises(
        preflight.PreflightError, match=r"not served as kubeflow\.org/v2; the group is served as kubeflow\.org/v1.*training operator"
    ):
        preflight.check(api, Newer(), settings())


def test_a_group_that_nobody_installed_is_named_with_what_to_install(api: Cluster) -> None:
    class Absent(PyTorchJobBackend):
        group = "absent.example.org"

    assert "pytorchjobs are not served as absent.example.org/v1" in preflight.kind_is_served(api, Absent()).found


def test_a_missing_right_is_named_by_verb_resource_and_account(cluster: TestCluster, api: Cluster) -> None:
    rules = [
        {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
    ]
    weak = as_account(cluster, api.namespace, "weak", rules)
    with pytest.raises(preflight.PreflightError) as caught:
        preflight.check(weak, PyTorchJobBackend(), settings())
    lacking = f"system:serviceaccount:{api.namespace}:weak may not create pytorchjobs.kubeflow.org, delete pytorchjobs.kubeflow.org, get pods/log in"
    assert lacking in str(caught.value)
    assert "manifests/base" in str(caught.value)


def test_an_account_with_the_needed_rights_alone_passes_and_says_what_it_could_not_see(
    cluster: TestCluster, api: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    rules = [
        {"apiGroups": [right.group], "resources": [f"{right.resource}/{right.subresource}".rstrip("/")], "verbs": [right.verb]}
        for right in rights.needed_rights(PyTorchJobBackend())
    ]
    least = as_account(cluster, api.namespace, "least", rules)
    chosen = settings(volumes=[{"claim": "fsx", "path": "/mnt/fsx"}], instance="p5.48xlarge")
    preflight.check(least, PyTorchJobBackend(), chosen)
    said = capfd.readouterr().out
    assert "may not list nodes in the cluster: nodes aren't checked" in said
    assert "fsx can't be looked up" in said
    assert "nodes can't be listed" in choose_zone(least, chosen).notes[0]


def with_quota(cluster: TestCluster, api: Cluster, hard: dict[str, str]) -> None:
    cluster.core.create_namespaced_resource_quota(api.namespace, {"metadata": {"name": "team"}, "spec": {"hard": hard}})

    def counted() -> bool:
        return bool(cluster.core.read_namespaced_resource_quota("team", api.namespace).status.hard)

    eventually(counted, within_s=20, what="status of the quota")


@pytest.mark.parametrize(
    ("hard", "words"),
    [
        ({"pods": "1"}, "pods: 2 asked, 1 of 1 left"),
        ({"requests.cpu": "3", "limits.cpu": "8"}, "requests.cpu: 4 asked, 3 of 3 left"),
        ({"limits.memory": "1Gi"}, "limits.memory: 4Gi asked, 1Gi of 1Gi left"),
        ({"count/pytorchjobs.kubeflow.org": "0"}, "count/pytorchjobs.kubeflow.org: 1 asked, 0 of 0 left"),
        ({"requests.nvidia.com/gpu": "1"}, "requests.nvidia.com/gpu: 2 asked, 1 of 1 left"),
    ],
)
def test_a_quota_that_would_refuse_pods_is_named_with_its_figures(
    cluster: TestCluster, api: Cluster, hard: dict[str, str], words: str
) -> None:
    with_quota(cluster, api, hard)
    message = refusal(api, resources={"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": "1"})
    assert f"ResourceQuota team would refuse pods of the job: {words}" in message


def test_a_quota_on_what_the_pods_do_not_say_is_told_with_the_setting(cluster: TestCluster, api: Cluster) -> None:
    with_quota(cluster, api, {"limits.cpu": "8"})
    assert "ResourceQuota team counts limits.cpu, so pods that don't say theirs are refused. Give launch.resources" in refusal(api)


def test_a_claim_that_nothing_will_bind_is_told(cluster: TestCluster, api: Cluster) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
    cluster.core.create_namespaced_persistent_volume_claim(api.namespace, {"metadata": {"name": "fsx"}, "spec": spec})
    assert "fsx is Pending, and no storage class will bind it" in refusal(api, volumes=[{"claim": "fsx", "path": "/mnt/fsx"}])


def test_nodes_with_fewer_efa_devices_than_their_type_has_are_told_before_the_job_is_made(
    cluster: TestCluster, api: Cluster, fake_nodes: Callable[..., list[str]]
) -> None:
    group = uuid.uuid4().hex[:8]
    join_group(cluster, fake_nodes(8, efa=4, zone="a"), group)
    chosen = fake_p5(group)
    with pytest.raises(preflight.PreflightError) as caught:
        preflight.check(api, PyTorchJobBackend(), chosen)
    assert "8 of 8 p5.48xlarge node(s) offer less vpc.amazonaws.com/efa than the instance type's 32 (at most 4 allocatable)" in str(
        caught.value
    )
    assert "See that its device plugin runs on them" in str(caught.value)
    assert "nvidia.com/gpu" not in str(caught.value)


def doctor(cluster: TestCluster, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setenv("KUBECONFIG", os.fspath(cluster.kubeconfig))
    return CliRunner().invoke(app, ["doctor", "--cluster", *arguments])


def test_the_doctor_pulls_the_image_and_writes_the_workspace_from_a_pod(
    cluster: TestCluster, api: Cluster, workspace: Workspace, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [
        f"launch.namespace={api.namespace}", f"launch.image={images.trainer}", f"launch.service_account={SERVICE_ACCOUNT}",
        f"launch.volumes=[{{claim: {workspace.claim}, path: {workspace.folder}}}]", "launch.image_pull_policy=Never",
    ]  # fmt: skip
    arguments = [part for one in sets for part in ("--set", one)]
    result = doctor(cluster, monkeypatch, *arguments, "--workspace", str(workspace.folder), "--pull", "--timeout", "60")
    assert result.exit_code == 0, result.output + result.stderr
    for line in ("api server", "served as kubeflow.org/v1", "is bound", "was pulled and started", "a pod wrote, read and removed a file"):
        assert line in result.output
    assert list(workspace.folder.iterdir()) == []
    assert cluster.core.list_namespaced_pod(api.namespace).items == []


def test_the_doctor_counts_nodes_and_their_devices_against_the_settings(
    cluster: TestCluster, api: Cluster, fake_nodes: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group = uuid.uuid4().hex[:8]
    join_group(cluster, fake_nodes(8, zone="b"), group)
    config = tmp_path / "efa.yaml"
    launch = fake_p5(group, namespace=api.namespace, volumes=[{"claim": "absent", "path": str(tmp_path)}]).model_dump(mode="json")
    config.write_text(json.dumps({"data": {"tables": "t"}, "training": {"num_processes": 64}, "launch": launch}))
    result = doctor(cluster, monkeypatch, "--config", str(config), "--workspace", str(tmp_path), "--json")
    found = {(check["name"], check["state"]): check["found"] for check in json.loads(result.stdout)}
    assert result.exit_code == 1
    assert "claim absent, which does not exist" in found["claim", "missing"]
    assert found["room", "ok"] == "8 pod(s) on p5.48xlarge fit into zone b"
    assert {check["found"] for check in json.loads(result.stdout) if check["name"] == "nodes"} == {
        "8 p5.48xlarge offer 8 nvidia.com/gpu", "8 p5.48xlarge offer 32 vpc.amazonaws.com/efa", "8 p5.48xlarge offer 5Gi hugepages-2Mi",
    }  # fmt: skip


def test_the_doctor_says_what_is_wrong_with_the_image_and_leaves_with_code_1(
    cluster: TestCluster, api: Cluster, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [
        f"launch.namespace={api.namespace}", "launch.image=localhost/absent:1", "launch.image_pull_policy=Never",
        f"launch.volumes=[{{claim: {workspace.claim}, path: {workspace.folder}}}]",
    ]  # fmt: skip
    arguments = [part for one in sets for part in ("--set", one)]
    result = doctor(cluster, monkeypatch, *arguments, "--workspace", str(workspace.folder), "--pull", "--timeout", "60")
    assert result.exit_code == 1
    assert "launch.image=localhost/absent:1: ErrImageNeverPull" in result.output
    assert "missing: image" in result.stderr
