"""The cluster's nodes as placement sees them: what each has free, and why one can't take a pod."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.instances import NETWORK_LAYER_LABEL, ZONE_LABEL
from clrflow.launch.cluster.quantity import parse_resources, show_quantity
from clrflow.launch.settings import LaunchSettings

PAGE = 500


@dataclasses.dataclass(frozen=True)
class Need:
    """What one pod of the job asks of a node."""

    resources: Mapping[str, Fraction]
    selector: Mapping[str, str]
    """Labels, without the zone's."""
    tolerations: tuple[Mapping[str, str], ...]

    @classmethod
    def of(cls, settings: LaunchSettings) -> Need:
        from clrflow.launch.cluster.pods import node_selector, tolerations

        selector = {label: value for label, value in node_selector(settings).items() if label != ZONE_LABEL}
        return cls(resources=parse_resources(settings.pod_resources), selector=selector, tolerations=tuple(tolerations(settings)))


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of the kind that the job asks for."""

    name: str
    zone: str
    layers: tuple[str, ...]
    """AWS's network node of layers 1, 2, 3; () elsewhere."""
    free: Mapping[str, Fraction]
    allocatable: Mapping[str, Fraction]
    trouble: str
    """Why it takes no pod now, whatever is free; "" if it does."""

    def room(self, need: Need, most: int) -> int:
        """How many such pods fit, at most `most`."""
        if self.trouble:
            return 0
        counts = [int(self.free.get(name, Fraction(0)) // amount) for name, amount in need.resources.items() if amount > 0]
        return max(0, min([most, int(self.free.get("pods", Fraction(most))), *counts]))

    def lack(self, need: Need) -> str:
        """In words, why no pod fits: its trouble, a device that it doesn't have at all, or what others have taken."""
        if self.trouble:
            return self.trouble
        for name, amount in need.resources.items():
            if self.allocatable.get(name, Fraction(0)) < amount:
                return f"only {show_quantity(name, self.allocatable.get(name, Fraction(0)))} {name} allocatable"
        for name, amount in need.resources.items():
            if self.free.get(name, Fraction(0)) < amount:
                return f"only {show_quantity(name, self.free.get(name, Fraction(0)))} {name} free"
        return "no room for another pod"


def list_nodes(cluster: Cluster, need: Need) -> tuple[list[Node], list[str]]:
    """Nodes with the job's labels and what is free on them, beside notes on what couldn't be read. Raises ApiError if nodes can't be."""
    selector = ",".join(f"{label}={value}" for label, value in need.selector.items())
    nodes = _list(cluster, "/api/v1/nodes", {"labelSelector": selector} if selector else {})
    try:
        pods = _list(cluster, "/api/v1/pods", {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"})
    except ApiError as error:
        if error.status != 403:
            raise
        blind = "pods of other namespaces can't be listed, so nodes in use count as free; give the launcher `list pods` in the cluster"
        return read_nodes(nodes, (), need), [blind]
    return read_nodes(nodes, pods, need), []


def read_nodes(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], need: Need) -> list[Node]:
    """API objects of nodes and of the pods on them → what each node has free."""
    used: dict[str, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for pod in pods:
        taken = used[pod["spec"]["nodeName"]]
        taken["pods"] += 1
        for name, amount in pod_requests(pod["spec"]).items():
            taken[name] += amount
    return [_node(raw, used.get(raw["metadata"]["name"], {}), need) for raw in nodes]


def _list(cluster: Cluster, path: str, query: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All pages; an API server is not asked for 10,000 pods in one answer."""
    items: list[dict[str, Any]] = []
    token = ""
    while True:
        page = cluster.call("GET", path, query={**query, "limit": PAGE, **({"continue": token} if token else {})})
        items += page["items"]
        token = page["metadata"].get("continue", "")
        if not token:
            return items


def pod_requests(spec: Mapping[str, Any]) -> dict[str, Fraction]:
    """What the scheduler counts for a pod: all containers together, or the largest init container if that is more; and the overhead."""
    total: dict[str, Fraction] = defaultdict(Fraction)
    for container in spec.get("containers") or ():
        for name, amount in _requests(container).items():
            total[name] += amount
    for container in spec.get("initContainers") or ():
        for name, amount in _requests(container).items():
            total[name] = total[name] + amount if container.get("restartPolicy") == "Always" else max(total[name], amount)
    for name, amount in parse_resources(spec.get("overhead") or {}).items():
        total[name] += amount
    return dict(total)


def _requests(container: Mapping[str, Any]) -> dict[str, Fraction]:
    return parse_resources((container.get("resources") or {}).get("requests") or {})


def _node(raw: Mapping[str, Any], used: Mapping[str, Fraction], need: Need) -> Node:
    labels = raw["metadata"].get("labels") or {}
    allocatable = parse_resources(raw.get("status", {}).get("allocatable") or {})
    free = {name: amount - used.get(name, Fraction(0)) for name, amount in allocatable.items()}
    layers = tuple(labels[name] for layer in (1, 2, 3) if (name := f"{NETWORK_LAYER_LABEL}{layer}") in labels)
    return Node(
        name=raw["metadata"]["name"], zone=labels.get(ZONE_LABEL, ""), layers=layers, free=free, allocatable=allocatable,
        trouble=_trouble(raw, need),
    )  # fmt: skip


def _trouble(raw: Mapping[str, Any], need: Need) -> str:
    ready = next((item["status"] for item in raw.get("status", {}).get("conditions") or () if item["type"] == "Ready"), "Unknown")
    if ready != "True":
        return "not ready"
    if raw["spec"].get("unschedulable"):
        return "cordoned"
    for taint in raw["spec"].get("taints") or ():
        if taint["effect"] != "PreferNoSchedule" and not any(tolerates(toleration, taint) for toleration in need.tolerations):
            return f"taint {taint['key']} not tolerated"
    return ""


def tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    """The scheduler's rule: key and effect match or are open, and the value matches unless any will do."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator", "Equal") == "Exists" or toleration.get("value", "") == taint.get("value", "")
