"""What the launcher's account must and should be allowed; the Role of manifests/base grants exactly this."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.finding import Finding
from clrflow.launch.cluster.plan import Backend

REMEDY = "Apply the launcher's Role and RoleBinding of manifests/base to this account."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Right:
    """A verb on a resource; the launcher's Role is made of these."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    cluster_wide: bool = False

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}" + (f"/{self.subresource}" if self.subresource else "")


def needed_rights(backend: Backend) -> list[Right]:
    """Without these no job can be made, followed and ended."""
    job = [Right(verb=verb, resource=backend.plural, group=backend.group) for verb in ("create", "get", "list", "delete")]
    follow = [Right(verb="list", resource="pods"), Right(verb="get", resource="pods", subresource="log")]
    return [*job, *follow]


OPTIONAL_RIGHTS = {
    Right(verb="list", resource="events"): "why pods can't be made or wait is told by their conditions only",
    Right(verb="list", resource="nodes", cluster_wide=True): "nodes aren't checked for room before the job is made",
    Right(verb="list", resource="pods", cluster_wide=True): "nodes that other namespaces use count as free",
    Right(verb="list", resource="resourcequotas"): "quotas show only when pods are refused",
    Right(verb="get", resource="persistentvolumeclaims"): "claims show only when pods wait for them",
    Right(verb="get", resource="serviceaccounts"): "a missing service account shows only when pods are refused",
    Right(
        verb="get", resource="workflows", group="argoproj.io"
    ): "a terminated run can't be told from a drained node, so SIGTERM ends the job",
}


def rights(cluster: Cluster, backend: Backend) -> Iterator[Finding]:
    who = _who(cluster)
    lacking = [right for right in needed_rights(backend) if not _may(cluster, right)]
    if lacking:
        listed = ", ".join(map(str, lacking))
        yield Finding(name="rights", state="missing", found=f"{who} may not {listed} in namespace {cluster.namespace}", remedy=REMEDY)
    else:
        yield Finding(name="rights", state="ok", found=f"{who} may make, follow and end {backend.plural} in namespace {cluster.namespace}")
    for right, consequence in OPTIONAL_RIGHTS.items():
        if not _may(cluster, right):
            scope = "in the cluster" if right.cluster_wide else f"in namespace {cluster.namespace}"
            yield Finding(name="rights", state="note", found=f"{who} may not {right} {scope}: {consequence}", remedy=REMEDY)


def _may(cluster: Cluster, right: Right) -> bool:
    return cluster.can_i(right.verb, right.resource, right.group, subresource=right.subresource, cluster_wide=right.cluster_wide)


def _who(cluster: Cluster) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        return str(cluster.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=body)["status"]["userInfo"]["username"])
    except ApiError:
        return "this account"  # before Kubernetes 1.28
