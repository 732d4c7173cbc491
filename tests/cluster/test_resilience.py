"""Launchers that die and API servers that go: the job is adopted, or ends by itself, and nothing of what it says is lost."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cluster.conftest import eventually
from tests.cluster.launching import Launching

pytestmark = pytest.mark.cluster


def test_a_retry_adopts_the_job_of_a_killed_launcher(launching: Launching) -> None:
    request = launching.job("counting", "OUTPUT", "70")
    first = launching.start(request, launching.settings())
    first.wait_for("number 00003")
    first.kill()
    (left,) = launching.jobs()
    second = launching.start(request, launching.settings())
    assert second.wait() == 0, second.said
    (job,) = launching.jobs()
    assert job["metadata"]["uid"] == left["metadata"]["uid"]
    assert "number 00069" in second.said
    delete_jobs(launching)


def test_the_launcher_outlives_the_api_server_and_its_token(
    launching: Launching, restart_api_server: Callable[[], None], tmp_path: Path
) -> None:
    login = Login(launching, tmp_path / "kubeconfig")
    login.rotate()
    launching.kubeconfig = login.kubeconfig
    try:
        process = launching.start(launching.job("counting", "OUTPUT", "160"), launching.settings())
        process.wait_for("number 00010")
        restart_api_server()
        process.wait_for("asking again", within_s=30)
        ready = ("get", "--raw", "/readyz")
        eventually(lambda: launching.cluster.kubectl(*ready, check=False).returncode == 0, within_s=60, what="API server")
        login.rotate()
        assert process.wait() == 0, process.said
    finally:
        launching.kubeconfig = None
    counted = [int(number) for number in re.findall(r"number (\d+)", process.said)]
    assert counted == list(range(160))
    delete_jobs(launching)


class Login:
    """A kubeconfig with a service account's token, which ends with the Secret that it is bound to."""

    def __init__(self, launching: Launching, kubeconfig: Path):
        self.core, self.namespace, self.kubeconfig = launching.cluster.core, launching.workspace.namespace, kubeconfig
        self.settings = yaml.safe_load(launching.cluster.kubeconfig.read_text())
        self.number = 0
        rights = [
            {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["create", "get", "list", "delete"]},
            {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        ]
        from kubernetes import client

        rbac = client.RbacAuthorizationV1Api(launching.cluster.api)
        self.core.create_namespaced_service_account(self.namespace, {"metadata": {"name": "person"}})
        rbac.create_namespaced_role(self.namespace, {"metadata": {"name": "person"}, "rules": rights})
        rbac.create_namespaced_role_binding(
            self.namespace,
            {
                "metadata": {"name": "person"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "person"},
                "subjects": [{"kind": "ServiceAccount", "name": "person", "namespace": self.namespace}],
            },
        )

    def rotate(self) -> None:
        """A new token; the one before ends at once (the server may remember it for ten seconds)."""
        self.number += 1
        secret = self.core.create_namespaced_secret(self.namespace, {"metadata": {"name": f"token-{self.number}"}})
        bound = {"kind": "Secret", "apiVersion": "v1", "name": secret.metadata.name, "uid": secret.metadata.uid}
        asked = {"spec": {"audiences": [], "expirationSeconds": 600, "boundObjectRef": bound}}
        token = self.core.create_namespaced_service_account_token("person", self.namespace, asked).status.token
        self.settings["users"][0]["user"] = {"token": token}
        draft = self.kubeconfig.with_suffix(".draft")
        draft.write_text(yaml.safe_dump(self.settings))
        shutil.move(draft, self.kubeconfig)
        if self.number > 1:
            self.core.delete_namespaced_secret(f"token-{self.number - 1}", self.namespace)


def delete_jobs(launching: Launching) -> None:
    for job in launching.jobs():
        launching.cluster.custom.delete_namespaced_custom_object(
            "kubeflow.org", "v1", launching.workspace.namespace, "pytorchjobs", job["metadata"]["name"]
        )
    eventually(lambda: not launching.pods(), within_s=30, what="end of the pods")
