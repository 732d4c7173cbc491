"""The launcher may do what its code asks for and nothing more; the other accounts may do nothing."""

from __future__ import annotations

from typing import Any

from clrflow.launch.cluster.pytorchjob import PyTorchJobBackend
from clrflow.launch.cluster.rights import OPTIONAL_RIGHTS, Right, needed_rights
from clrflow.launch.cluster.trainjob import TrainJobBackend
from tests.manifests.files import objects, the

LOOKED_AT = {
    Right(verb="list", resource="limitranges"),
    Right(verb="list", resource="nodepools", group="karpenter.sh", cluster_wide=True),
}
"""What the preflight looks at where it may, and says nothing where it may not."""


def rights_of(role: dict[str, Any], *, cluster_wide: bool = False) -> set[Right]:
    found = set()
    for rule in role["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                plural, _, subresource = resource.partition("/")
                found |= {
                    Right(verb=verb, resource=plural, group=group, subresource=subresource, cluster_wide=cluster_wide)
                    for verb in rule["verbs"]
                }
    return found


LAUNCHER = rights_of(the("Role", "clrflow-launcher"))
NODE_READER = rights_of(the("ClusterRole", "clrflow-node-reader"), cluster_wide=True)


def test_the_launcher_has_the_rights_that_its_preflight_asks_for() -> None:
    for backend in (PyTorchJobBackend(), TrainJobBackend("torch-distributed")):
        assert set(needed_rights(backend)) <= LAUNCHER
    assert set(OPTIONAL_RIGHTS) <= LAUNCHER | NODE_READER


def test_the_launcher_has_no_other_rights() -> None:
    asked = {*needed_rights(PyTorchJobBackend()), *needed_rights(TrainJobBackend("torch-distributed")), *OPTIONAL_RIGHTS}
    assert asked | LOOKED_AT == LAUNCHER | NODE_READER


def test_no_account_reads_secrets_enters_pods_or_holds_a_wildcard() -> None:
    for file, document in objects():
        if document["kind"] in ("Role", "ClusterRole"):
            for right in rights_of(document):
                assert right.resource not in ("secrets", "roles", "rolebindings", "*"), file
                assert right.subresource in ("", "log"), file
                assert "*" not in (right.verb, right.group), file
                assert right.verb not in ("escalate", "bind", "impersonate"), file


def test_what_goes_beyond_the_namespace_is_only_looked_at() -> None:
    assert {right.verb for right in NODE_READER} == {"list"}


def test_job_and_serving_accounts_are_bound_to_nothing_and_get_no_token() -> None:
    bound = {subject["name"] for _, document in objects() if document["kind"].endswith("RoleBinding") for subject in document["subjects"]}
    assert bound == {"clrflow-launcher", "pipeline-runner", "clrflow-spark"}
    for name in ("clrflow-job", "clrflow-serving", "clrflow-spark-executor"):
        assert the("ServiceAccount", name)["automountServiceAccountToken"] is False
