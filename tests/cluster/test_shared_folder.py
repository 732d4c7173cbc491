"""What other tests rely on: pods and this machine share a folder under one path, and neither is locked out by the other's files."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import Images, TestCluster, Workspace, eventually

pytestmark = pytest.mark.cluster


def test_a_pod_without_root_writes_where_this_machine_made_a_folder_and_the_other_way_round(
    cluster: TestCluster, namespace: str, workspace: Workspace, images: Images
) -> None:
    made_here = workspace.folder / "made" / "here"
    made_here.mkdir(parents=True)
    container = {
        "name": "writer",
        "image": images.base,
        "command": ["sh", "-c", f"umask 077; echo from the pod > {made_here}/file; mkdir {workspace.folder}/made-there"],
        "securityContext": {"runAsUser": 10001, "runAsGroup": 10001, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "workspace", "mountPath": str(workspace.folder)}],
    }
    volumes = [{"name": "workspace", "persistentVolumeClaim": {"claimName": workspace.claim}}]
    body = {"metadata": {"name": "writer"}, "spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes}}
    cluster.core.create_namespaced_pod(namespace, body)

    def ended() -> str:
        phase = cluster.core.read_namespaced_pod("writer", namespace).status.phase
        return phase if phase in ("Succeeded", "Failed") else ""

    phase = eventually(ended, within_s=60, what="end of the writer")
    assert phase == "Succeeded", cluster.core.read_namespaced_pod_log("writer", namespace)
    assert (made_here / "file").read_text() == "from the pod\n"
    assert (workspace.folder / "made-there").stat().st_mode & 0o777 == 0o777, "whoever runs the tests may write there, too"
