"""A cluster for the tests in this folder: whichever KUBECONFIG names, else the local one (`make test-cluster` brings it up).

Fixtures:
- `cluster` (session): a client of the cluster's API, and the path of its kubeconfig; without a cluster the tests are skipped with the reason.
- `namespace`: the name of a new namespace, whose default service account exists; deleted after the test. `module_namespace`: the same,
  shared by a module's tests.
- `workspace`, `module_workspace`: a folder that this machine and pods see under one absolute path, `workspace.folder`. Pods mount the claim
  `workspace.claim` of the namespace there. Everybody may write in it, so a launcher as root and pods as user 10001 share it.
- `images` (session): names of the project's images; CLRFLOW_TEST_IMAGE_DATA, _TORCH, _TRAINER and _SERVING name others.
- `fake_nodes`: makes fake EFA nodes, which go after the test; only where kwok runs.
- `restart_api_server`: restarts the local cluster's API server; other clusters' stay alone, and the test is skipped.

On a cluster that isn't the local one, CLRFLOW_TEST_SHARED names a folder that its nodes and this machine mount at one path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import struct
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

kubernetes = pytest.importorskip("kubernetes")
from kubernetes import client, config, dynamic  # noqa: E402

LOCAL = Path(__file__).parent / "local" / "cluster"
LOCAL_ROOT = Path(os.environ.get("CLRFLOW_CLUSTER") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clrflow-cluster")
LOCAL_SHARED = "/mnt/clrflow-cluster"
"""As in local/lib/common.sh."""
TEST_LABEL = "clrflow.test/owner"
SESSION = uuid.uuid4().hex[:12]
"""Value of that label for what these tests make: others may test on the same cluster at the same time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestCluster:
    """A client of the cluster's API, in the three ways in which tests speak to it."""

    __test__ = False  # its name isn't a test's

    kubeconfig: Path
    api: client.ApiClient
    is_local: bool
    """Whether it is the one of tests/cluster/local, whose programs a test may restart."""

    @property
    def core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api)

    @property
    def custom(self) -> client.CustomObjectsApi:
        return client.CustomObjectsApi(self.api)

    def dynamic(self) -> dynamic.DynamicClient:
        return dynamic.DynamicClient(self.api)

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        program = shutil.which("kubectl") or str(LOCAL_ROOT / "bin" / "kubectl")
        return subprocess.run(
            [program, "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin, capture_output=True, text=True, timeout=120, check=check,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workspace:
    """A folder that this machine and pods share."""

    folder: Path
    """The same absolute path here and, where the claim is mounted at it, in pods."""
    namespace: str
    claim: str = "workspace"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """Names of the project's images as the cluster's nodes know them."""

    data: str
    torch: str
    trainer: str
    serving: str
    base: str
    """A small image with a shell, for pods whose program doesn't matter."""


def eventually(found: Callable[[], Any], *, within_s: float, what: str) -> Any:
    """Call until something true comes back, and return it; fails the test with `what` after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not (value := found()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {within_s:.0f} s")
        time.sleep(0.5)  # each look costs the API server and this process a good part of a core
    return value


@pytest.fixture(scope="session")
def cluster() -> TestCluster:
    named = os.environ.get("KUBECONFIG", "")
    kubeconfig = Path(named) if named else LOCAL_ROOT / "pki" / "admin.kubeconfig"
    if not kubeconfig.exists():
        pytest.skip(f"no cluster: {kubeconfig} doesn't exist; run `make test-cluster`, or set KUBECONFIG")
    settings = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=settings)
    api = client.ApiClient(settings)
    try:
        client.VersionApi(api).get_code(_request_timeout=10)
    except Exception as error:
        pytest.skip(f"no cluster: {settings.host} of {kubeconfig} doesn't answer ({error}); run `make test-cluster`")
    local = LOCAL_ROOT / "pki" / "admin.kubeconfig"
    return TestCluster(kubeconfig=kubeconfig, api=api, is_local=local.exists() and local.samefile(kubeconfig))


@pytest.fixture(scope="session")
def images() -> Images:
    def name(which: str, default: str) -> str:
        return os.environ.get(f"CLRFLOW_TEST_IMAGE_{which}", default)

    return Images(
        data=name("DATA", "localhost/clrflow-pipeline:data"),
        torch=name("TORCH", "localhost/clrflow-pipeline:torch-cpu"),
        trainer=name("TRAINER", "localhost/clrflow-trainer:cpu"),
        serving=name("SERVING", "localhost/clrflow-serving:cpu"),
        base=name("BASE", "localhost/base:1"),
    )


@pytest.fixture
def namespace(cluster: TestCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    with _new_namespace(cluster, request.node.name) as name:
        yield name


@pytest.fixture(scope="module")
def module_namespace(cluster: TestCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    with _new_namespace(cluster, Path(request.node.name).stem) as name:
        yield name


@contextlib.contextmanager
def _new_namespace(cluster: TestCluster, made_for: str) -> Iterator[str]:
    readable = "".join(letter if letter.isalnum() else "-" for letter in made_for.lower().removeprefix("test_"))
    name = f"{readable[:40].strip('-')}-{uuid.uuid4().hex[:6]}"
    cluster.core.create_namespace({"metadata": {"name": name, "labels": {TEST_LABEL: SESSION}}})
    try:
        eventually(lambda: _exists(cluster.core.read_namespaced_service_account, "default", name), within_s=30, what="service account")
        yield name
    finally:
        remove(cluster.core.delete_namespace, name)


def remove(delete: Callable[..., Any], *arguments: str) -> None:
    """Delete what a test made, whether or not it is there still, and also while a test that runs beside it restarts the API server."""

    def answered() -> bool:
        try:
            delete(*arguments)
        except client.ApiException as error:
            if error.status < 500 and error.status != 404:
                raise
            return error.status == 404
        except urllib3.exceptions.HTTPError:
            return False
        return True

    eventually(answered, within_s=60, what=f"an API server that deletes {' '.join(arguments)}")


def _exists(read: Callable[..., Any], *arguments: str) -> bool:
    try:
        read(*arguments)
    except client.ApiException as error:
        if error.status != 404:
            raise
        return False
    return True


@pytest.fixture
def workspace(cluster: TestCluster, namespace: str) -> Iterator[Workspace]:
    with _new_workspace(cluster, namespace) as made:
        yield made


@pytest.fixture(scope="module")
def module_workspace(cluster: TestCluster, module_namespace: str) -> Iterator[Workspace]:
    with _new_workspace(cluster, module_namespace) as made:
        yield made


@contextlib.contextmanager
def _new_workspace(cluster: TestCluster, namespace: str) -> Iterator[Workspace]:
    shared = os.environ.get("CLRFLOW_TEST_SHARED") or (LOCAL_SHARED if cluster.is_local else "")
    if not shared:
        pytest.skip("no shared folder: set CLRFLOW_TEST_SHARED to a folder that the nodes and this machine mount at the same path")
    made = Workspace(folder=Path(shared) / namespace, namespace=namespace)
    made.folder.mkdir(parents=True)
    _let_everybody_write(made.folder)
    size = {"storage": "10Gi"}
    volume = {
        "metadata": {"name": namespace, "labels": {TEST_LABEL: SESSION}},
        "spec": {
            "capacity": size,
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(made.folder), "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": made.claim},
        },
    }
    claim = {
        "metadata": {"name": made.claim},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": namespace, "resources": {"requests": size}},
    }
    cluster.core.create_persistent_volume(volume)
    try:
        cluster.core.create_namespaced_persistent_volume_claim(namespace, claim)
        read = cluster.core.read_namespaced_persistent_volume_claim
        eventually(lambda: read(made.claim, namespace).status.phase == "Bound", within_s=60, what="bound claim")
        yield made
    finally:
        remove(cluster.core.delete_persistent_volume, namespace)
        shutil.rmtree(made.folder, ignore_errors=True)


def _let_everybody_write(folder: Path) -> None:
    """All that is made below it, too, whoever makes it and whatever the umask: a default ACL of rwx for owner, group and others."""
    folder.chmod(0o777)
    undefined = 0xFFFFFFFF
    entries = ((tag, 7, undefined) for tag in (0x01, 0x04, 0x20))  # owner, group, others: (tag, permissions, no id)
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(folder, "system.posix_acl_default", acl)


@pytest.fixture
def fake_nodes(cluster: TestCluster) -> Iterator[Callable[..., list[str]]]:
    """`fake_nodes(count, zone=..., instance=..., gpus=8, efa=32)`: nodes that only the API knows; their pods "run" at once and do nothing.

    Pods need a toleration of the taint kwok.x-k8s.io/node. The annotations clrflow.test/finish-after ("5s") and clrflow.test/exit-code end
    a fake pod.
    """
    if not cluster.is_local:
        pytest.skip("fake nodes need kwok, which runs in the local cluster only")
    made: list[str] = []

    def make(
        count: int, *, zone: str = "zone-a", instance: str = "p5.48xlarge", gpus: int = 8, efa: int = 32, cpu: str = "192",
        memory: str = "2048Gi", huge_pages: str = "5128Mi",
    ) -> list[str]:  # fmt: skip
        names = [f"fake-{uuid.uuid4().hex[:8]}" for _ in range(count)]
        for name in names:
            has = {"cpu": cpu, "memory": memory, "pods": "110", "ephemeral-storage": "28Ti", "hugepages-2Mi": huge_pages}
            has |= {"nvidia.com/gpu": str(gpus), "vpc.amazonaws.com/efa": str(efa)}
            labels = {
                "type": "kwok",
                TEST_LABEL: SESSION,
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": instance,
                "topology.kubernetes.io/zone": zone,
            }
            taints = [
                {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},
                {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"},
            ]
            body = {
                "metadata": {"name": name, "labels": labels},
                "spec": {"taints": taints},
                "status": {"capacity": has, "allocatable": has},
            }
            cluster.core.create_node(body)
            made.append(name)
        for name in names:
            eventually(lambda name=name: _is_ready(cluster, name), within_s=30, what=f"Ready node {name}")
        return names

    try:
        yield make
    finally:
        for name in made:
            remove(cluster.core.delete_node, name)


def _is_ready(cluster: TestCluster, node: str) -> bool:
    conditions = cluster.core.read_node(node).status.conditions or []
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


@pytest.fixture
def restart_api_server(cluster: TestCluster) -> Callable[[], None]:
    """Kills the API server and starts it again; returns at once, so a test sees the time without it."""
    if not cluster.is_local:
        pytest.skip("only the local cluster's API server may be restarted")
    return lambda: subprocess.run([str(LOCAL), "restart", "kube-apiserver"], check=True, capture_output=True, timeout=60) and None


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_in_the_cluster() -> Iterator[None]:
    """After the last test: namespaces and volumes that tests made are gone, or will be within a minute."""
    yield
    kubeconfig = Path(os.environ.get("KUBECONFIG") or LOCAL_ROOT / "pki" / "admin.kubeconfig")
    if not kubeconfig.exists():
        return
    settings = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=settings)
    core = client.CoreV1Api(client.ApiClient(settings))

    def left() -> list[str]:
        label = f"{TEST_LABEL}={SESSION}"
        try:
            found = [
                item
                for read in (core.list_namespace, core.list_persistent_volume, core.list_node)
                for item in read(label_selector=label, _request_timeout=10).items
            ]
        except urllib3.exceptions.HTTPError as error:  # tests that run beside these may be restarting the API server
            return [f"an API server that answers: {error}"]
        return [f"{type(item).__name__} {item.metadata.name}" for item in found]

    eventually(lambda: not left(), within_s=90, what="end of the tests' namespaces, volumes and nodes")


@pytest.fixture(scope="module")
def launching(cluster: TestCluster, images: Images, module_workspace: Workspace) -> Iterator[Any]:
    """Starts launchers as processes of their own, in the module's namespace (tests/cluster/launching.py)."""
    from tests.cluster.launching import Launching

    made = Launching(cluster=cluster, images=images, workspace=module_workspace)
    made.prepare()
    try:
        yield made
    finally:
        made.close()
