"""Where a job may run, decided before it is made: a zone with room for all of its pods, or a refusal that says what is missing.

All-to-all traffic between zones is slow and paid for, EFA doesn't cross them at all, and half a job that waits for its other half
holds GPUs. So with static capacity the zone is picked here and pinned; with an autoscaler only the node pools' limits can be known beforehand.
Next: nodes.py, what a node has free.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from clrflow.errors import ClrflowError
from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.instances import INSTANCE_LABEL, ZONE_LABEL
from clrflow.launch.cluster.nodes import Need, Node, list_nodes, tolerates
from clrflow.launch.cluster.quantity import parse_quantity, parse_resources, show_quantity
from clrflow.launch.settings import LaunchSettings

NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"


class NoRoom(ClrflowError):
    """The cluster can't take the job's pods; nothing was made."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """What was decided, and what to tell."""

    zone: str = ""
    """To be pinned; "" leaves it to the scheduler."""
    notes: tuple[str, ...] = ()


def choose_zone(cluster: Cluster, settings: LaunchSettings) -> Placement:
    """The zone for a job of these settings, to be asked before it is made: pods of the same job, if they already run, would take its room.

    Raises NoRoom with a table of zones (static), or where no node pool may grow far enough (autoscaled).
    """
    need = Need.of(settings)
    try:
        nodes, notes = list_nodes(cluster, need)
    except ApiError as error:
        if error.status != 403:
            raise
        blind = "nodes can't be listed, so their room isn't checked beforehand; give the launcher `list nodes` (manifests/base) for that"
        return Placement(zone=settings.zone, notes=(blind,))
    if settings.capacity == "static":
        return Placement(zone=pick_zone(nodes, settings, need), notes=tuple(notes))
    try:
        pools = cluster.call("GET", NODE_POOLS)["items"]
    except ApiError as error:
        why = "the cluster has no Karpenter" if error.status == 404 else f"NodePools can't be listed ({error.status} {error.reason})"
        unknown = f"{why}, so the autoscaler's limits aren't checked; pods wait up to launch.provision_timeout_s={settings.provision_timeout_s:g} s"
        return Placement(zone=settings.zone, notes=(*notes, unknown))
    return Placement(zone=settings.zone, notes=(*notes, *check_pools(pools, nodes, settings, need)))


def pick_zone(nodes: Sequence[Node], settings: LaunchSettings, need: Need) -> str:
    """The zone with room for all pods whose nodes hang on the fewest switches; then the one with the most room. Raises NoRoom if there is none."""
    fitting = []
    for zone, members in _by_zone(nodes).items():
        room = _room(members, settings, need)
        if room >= settings.nodes and settings.zone in ("", zone):
            fitting.append((_switches(members, settings, need), -room, zone))
    if not fitting:
        raise NoRoom(_refusal(nodes, settings, need))
    return min(fitting)[2]


def _by_zone(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    zones: dict[str, list[Node]] = {}
    for node in nodes:
        zones.setdefault(node.zone, []).append(node)
    return dict(sorted(zones.items()))


def _per_node(settings: LaunchSettings) -> int:
    """Pods of the job that one node may take: one of an instance type, as affinity() demands; any number of CPU pods."""
    return 1 if settings.instance else settings.nodes


def _room(nodes: Iterable[Node], settings: LaunchSettings, need: Need) -> int:
    return sum(node.room(need, _per_node(settings)) for node in nodes)


def _switches(nodes: Sequence[Node], settings: LaunchSettings, need: Need) -> tuple[int, ...]:
    """Network nodes of layers 1, 2 and 3 that the job must span at least, by taking the roomiest first; () without such labels."""
    depth = min((len(node.layers) for node in nodes), default=0)
    spans = []
    for layer in range(depth):
        rooms: Counter[str] = Counter()
        for node in nodes:
            rooms[node.layers[layer]] += node.room(need, _per_node(settings))
        left, used = settings.nodes, 0
        for _, room in rooms.most_common():
            if left <= 0:
                break
            left, used = left - room, used + 1
        spans.append(used)
    return tuple(spans)


def _what(settings: LaunchSettings, need: Need) -> str:
    asked = ", ".join(f"{show_quantity(name, amount)} {name}" for name, amount in need.resources.items())
    kind = f" of launch.instance={settings.instance}" if settings.instance else ""
    return f"launch.nodes={settings.nodes}{kind}" + (f" ({asked} each)" if asked else "")


def _refusal(nodes: Sequence[Node], settings: LaunchSettings, need: Need) -> str:
    selector = ", ".join(f"{label}={value}" for label, value in need.selector.items())
    if not nodes:
        return (
            f"{_what(settings, need)}: the cluster has no node{f' with {selector}' if selector else ''}; add such a node pool, correct launch.instance or "
            "launch.node_selector, or set launch.capacity=autoscaled if nodes come when pods wait."
        )
    zones = _by_zone(nodes)
    if settings.zone and settings.zone not in zones:
        return (
            f"launch.zone={settings.zone}: no node of the job's kind is there; they are in {', '.join(zone or 'no zone' for zone in zones)}. "
            "Give one of these, or leave launch.zone empty."
        )
    lines = [
        f"{_what(settings, need)} need room for {settings.nodes} pods in one zone, and no zone has it:",
        "  zone  free  needed  others",
    ]
    for zone, members in zones.items():
        reasons = Counter(node.lack(need) for node in members if not node.room(need, 1))
        others = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common(4))
        lines.append(f"  {zone or '(none)'}  {_room(members, settings, need)}  {settings.nodes}  {others or '-'}")
    lines.append(_remedy(nodes, settings, need))
    return "\n".join(lines)


def _remedy(nodes: Sequence[Node], settings: LaunchSettings, need: Need) -> str:
    absent = [name for name in need.resources if all(not node.allocatable.get(name) for node in nodes)]
    if absent:
        plugin = "reserve huge pages on them at boot" if absent[0].startswith("hugepages-") else "install its device plugin on them"
        return f"No such node offers {', '.join(absent)}: {plugin}, or correct launch.instance and launch.resources."
    return "Free nodes, lower launch.nodes (with training.num_processes), or set launch.capacity=autoscaled if nodes come when pods wait."


def check_pools(pools: Iterable[Mapping[str, Any]], nodes: Sequence[Node], settings: LaunchSettings, need: Need) -> list[str]:
    """Raises NoRoom for a job that Karpenter's NodePools, with the nodes there are, can't let through; returns notes where that isn't known."""
    matching = [pool for pool in pools if _pool_fits(pool, settings, need)]
    if not matching:
        return ["no Karpenter NodePool is made for such pods; if nothing else adds nodes, they wait in vain"]
    existing = max((_room(members, settings, need) for zone, members in _by_zone(nodes).items() if settings.zone in ("", zone)), default=0)
    growth = {pool["metadata"]["name"]: _growth(pool, need, settings) for pool in matching}
    most = existing + sum(count for count, _ in growth.values())
    if most >= settings.nodes:
        return []
    limits = "; ".join(f"{name}: {count} more ({why})" for name, (count, why) in growth.items())
    raise NoRoom(
        f"{_what(settings, need)} need {settings.nodes} nodes; {existing} are free now and the node pools may grow by too few: {limits}. Raise the "
        "NodePool's spec.limits, or lower launch.nodes."
    )


def _pool_fits(pool: Mapping[str, Any], settings: LaunchSettings, need: Need) -> bool:
    spec = pool["spec"]["template"]["spec"]
    labels: dict[str, str] = (pool["spec"]["template"].get("metadata") or {}).get("labels") or {}
    wanted = dict(need.selector)
    if settings.zone:
        wanted[ZONE_LABEL] = settings.zone
    requirements = {requirement["key"]: requirement for requirement in spec.get("requirements") or ()}
    for label, value in wanted.items():
        if label in labels and labels[label] != value:
            return False
        if label in requirements and not _allows(requirements[label], value):
            return False
        if label not in labels and label not in requirements and label not in (INSTANCE_LABEL, ZONE_LABEL):
            return False  # Karpenter adds only well-known labels by itself
    return all(
        taint["effect"] == "PreferNoSchedule" or any(tolerates(toleration, taint) for toleration in need.tolerations)
        for taint in spec.get("taints") or ()
    )


def _allows(requirement: Mapping[str, Any], value: str) -> bool:
    values = requirement.get("values") or []
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "DoesNotExist":
            return False
        case _:
            return True


def _growth(pool: Mapping[str, Any], need: Need, settings: LaunchSettings) -> tuple[int, str]:
    """Pods for which the pool may still add nodes, at most as many as the job has, and the limit that says so."""
    limits = parse_resources(pool["spec"].get("limits") or {})
    used = parse_resources((pool.get("status") or {}).get("resources") or {})
    smallest, why = settings.nodes, "no limit in the way"
    for name, limit in limits.items():
        # A limit counts whole nodes, and a node offers more than its pod asks for, so this is the most that could come.
        amount = parse_quantity("1") if name == "nodes" and settings.instance else need.resources.get(name, Fraction(0))
        if amount <= 0:
            continue
        left = int(max(Fraction(0), limit - used.get(name, Fraction(0))) // amount)
        if left < smallest:
            smallest, why = (
                left,
                f"{show_quantity(name, used.get(name, Fraction(0)))} of its limit {show_quantity(name, limit)} {name} in use",
            )
    return smallest, why
