"""Rendered jobs against the real CRDs and webhooks: every field exists, has the right type, and is taken."""

from __future__ import annotations

from typing import Any

import pytest

from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.identity import Identity
from tests.cluster.conftest import TestCluster, eventually
from tests.cluster.jobs_under_test import create, fake_p5, rendered, settings

pytestmark = pytest.mark.cluster

FULL: dict[str, Any] = {
    "volumes": [{"claim": "workspace", "path": "/w"}],
    "env": {"A": "b"},
    "pull_secrets": ["registry"],
    "secret_env": [{"name": "TOKEN", "secret": "s", "key": "k"}],
    "labels": {"team": "ml"},
    "annotations": {"note": "text"},
    "zone": "a",
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"elastic": True},
        {"nodes": 1},
        {"priority_class": "p", **FULL},
        {"resources": {"cpu": "2", "memory": "4Gi"}},
        {"launcher": "trainjob"},
        {"launcher": "trainjob", **FULL},
    ],
    ids=["static", "elastic", "one node", "all settings", "resources", "trainjob", "trainjob with all it takes"],
)
def test_a_job_is_taken_field_by_field(cluster: TestCluster, module_namespace: str, changes: dict[str, Any]) -> None:
    api = Cluster(cluster.api, module_namespace)
    for chosen in (settings(**changes), fake_p5("g", **changes)):
        job = rendered(chosen, api)
        taken = create(api, chosen, job, dry_run=True)
        assert taken["metadata"]["name"] == job["metadata"]["name"]


@pytest.mark.parametrize("launcher", ["pytorchjob", "trainjob"])
def test_a_field_that_the_crd_does_not_have_is_refused(cluster: TestCluster, module_namespace: str, launcher: str) -> None:
    api = Cluster(cluster.api, module_namespace)
    chosen = settings(launcher=launcher)
    job = rendered(chosen, api)
    job["spec"]["numProcPerNodes"] = 2
    with pytest.raises(ApiError, match=r'unknown field "spec\.numProcPerNodes"'):
        create(api, chosen, job, dry_run=True)


def test_a_job_is_owned_by_its_workflow_and_goes_with_it(cluster: TestCluster, namespace: str) -> None:
    api = Cluster(cluster.api, namespace)
    path = api.custom("argoproj.io", "v1alpha1", "workflows")
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "nightly-x7"}, "spec": {}}
    uid = api.call("POST", path, body=workflow)["metadata"]["uid"]
    identity = Identity.from_environment(api, {"CLRFLOW_KFP_WORKFLOW": "nightly-x7", "CLRFLOW_KFP_RUN_ID": "1f9"})
    assert identity.workflow_uid == uid
    chosen = settings(labels={"suspended": "true"})
    job = rendered(chosen, api, identity=identity)
    job["spec"]["runPolicy"]["suspend"] = True  # no pods: it is about the job
    create(api, chosen, job)
    api.call("DELETE", f"{path}/nightly-x7")
    jobs = api.custom("kubeflow.org", "v1", "pytorchjobs")
    eventually(lambda: not api.call("GET", jobs)["items"], within_s=20, what="end of the job whose Workflow was deleted")


def test_a_workflow_that_is_gone_leaves_the_job_without_owner_and_says_so(
    cluster: TestCluster, module_namespace: str, capfd: pytest.CaptureFixture[str]
) -> None:
    identity = Identity.from_environment(Cluster(cluster.api, module_namespace), {"CLRFLOW_KFP_WORKFLOW": "gone"})
    assert identity.owner is None
    assert "Workflow gone in namespace" in capfd.readouterr().out
