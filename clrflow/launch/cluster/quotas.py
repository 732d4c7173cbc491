"""Would the namespace's ResourceQuotas refuse the job's pods? Else that shows only as pods that never come."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.finding import Finding
from clrflow.launch.cluster.plan import Backend
from clrflow.launch.cluster.quantity import parse_resources, show_quantity
from clrflow.launch.settings import LaunchSettings


def quotas(cluster: Cluster, backend: Backend, settings: LaunchSettings) -> Iterator[Finding]:
    """Would the namespace's quotas refuse a pod? A quota with scopes counts only some pods, and is left to the API server."""
    try:
        listed = cluster.call("GET", cluster.core("resourcequotas"))["items"]
    except ApiError as error:
        if error.status != 403:
            raise
        return
    asked = _asked_of_quota(backend, settings)
    for quota in listed:
        name = quota["metadata"]["name"]
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue
        status = quota.get("status", {})
        hard, used = parse_resources(status.get("hard") or {}), parse_resources(status.get("used") or {})
        unsaid = [
            key
            for key in ("requests.cpu", "cpu", "limits.cpu", "requests.memory", "memory", "limits.memory")
            if key in hard and not asked.get(key)
        ]
        over = [
            f"{key}: {show_quantity(key, asked[key])} asked, {show_quantity(key, limit - used.get(key, Fraction(0)))} of {show_quantity(key, limit)} left"
            for key, limit in hard.items()
            if asked.get(key, Fraction(0)) > limit - used.get(key, Fraction(0))
        ]
        if over:
            yield Finding(
                name="quota", state="missing", found=f"ResourceQuota {name} would refuse pods of the job: {'; '.join(over)}",
                remedy="Raise it, wait for other work in the namespace to end, or lower launch.nodes or launch.resources.",
            )  # fmt: skip
        elif unsaid and not _has_defaults(cluster):
            yield Finding(
                name="quota", state="missing", found=f"ResourceQuota {name} counts {', '.join(unsaid)}, so pods that don't say theirs are refused",
                remedy='Give launch.resources, e.g. {cpu: "4", memory: 8Gi}.',
            )  # fmt: skip
        else:
            yield Finding(name="quota", state="ok", found=f"ResourceQuota {name} leaves room for the job")


def _asked_of_quota(backend: Backend, settings: LaunchSettings) -> dict[str, Fraction]:
    """The whole job in a quota's words; the operator makes a Service beside each pod."""
    nodes = Fraction(settings.nodes)
    asked = {"pods": nodes, "count/pods": nodes, "services": nodes, "count/services": nodes}
    asked[f"count/{backend.plural}.{backend.group}"] = Fraction(1)
    for name, amount in parse_resources(settings.pod_resources).items():
        asked[f"requests.{name}"] = amount * nodes
        if name in ("cpu", "memory"):
            asked[name] = asked[f"limits.{name}"] = amount * nodes
        elif name.startswith("hugepages-"):
            asked[name] = amount * nodes
    return asked


def _has_defaults(cluster: Cluster) -> bool:
    """A LimitRange fills in what pods don't say; where that can't be seen, don't refuse."""
    try:
        return bool(cluster.call("GET", cluster.core("limitranges"))["items"])
    except ApiError:
        return True
