"""What must be there before a job is made, looked up beforehand: an error in a second instead of pods that wait.

Each look is a Finding; the launcher raises what is missing, `clrflow doctor --cluster` prints all. What this account may not look up is a
note, as least privilege must not stop a job. Next: placement.py, which looks at the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from clrflow.errors import ClrflowError
from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.finding import Finding
from clrflow.launch.cluster.instances import INSTANCES, ZONE_LABEL
from clrflow.launch.cluster.nodes import Need, list_nodes
from clrflow.launch.cluster.plan import Backend
from clrflow.launch.cluster.quantity import parse_resources, show_quantity
from clrflow.launch.cluster.quotas import quotas
from clrflow.launch.cluster.rights import rights
from clrflow.launch.settings import LaunchSettings
from clrflow.progress import say


class PreflightError(ClrflowError):
    """The cluster lacks something that the job needs; nothing was made."""


def check(cluster: Cluster, backend: Backend, settings: LaunchSettings) -> None:
    """Raises PreflightError with every missing thing and its remedy; prints notes."""
    found = list(findings(cluster, backend, settings))
    missing = [finding for finding in found if finding.state == "missing"]
    if missing:
        lines = "\n".join(f"  {finding.name}: {finding.found}. {finding.remedy}" for finding in missing)
        raise PreflightError(f"the job can't run in namespace {cluster.namespace}, nothing was made:\n{lines}")
    for finding in found:
        if finding.state == "note":
            say(f"preflight: {finding.name}: {finding.found}")


def findings(cluster: Cluster, backend: Backend, settings: LaunchSettings) -> Iterator[Finding]:
    """All looks, in the order in which one would repair things."""
    yield kind_is_served(cluster, backend)
    yield from rights(cluster, backend)
    yield service_account(cluster, settings)
    yield from secrets(cluster, settings)
    yield from claims(cluster, settings)
    yield from quotas(cluster, backend, settings)
    yield from devices(cluster, settings)


def kind_is_served(cluster: Cluster, backend: Backend) -> Finding:
    """Is the CRD there, in the version that this module writes?"""
    name, wanted = backend.kind, f"{backend.group}/{backend.version}"
    try:
        resources = cluster.call("GET", f"/apis/{wanted}")["resources"]
    except ApiError as error:
        if error.status != 404:
            raise
        resources = []
    if any(resource["name"] == backend.plural for resource in resources):
        return Finding(name=name, state="ok", found=f"served as {wanted}")
    try:
        versions = [version["groupVersion"] for version in cluster.call("GET", f"/apis/{backend.group}")["versions"]]
    except ApiError:
        versions = []
    operator = "Kubeflow Trainer 2.0" if backend.kind == "TrainJob" else "the Kubeflow training operator 1.8 or 1.9"
    known = f"; the group is served as {', '.join(versions)}" if versions else ""
    return Finding(
        name=name, state="missing", found=f"{backend.plural} are not served as {wanted}{known}",
        remedy=f"Install {operator}, or choose another launch.launcher.",
    )  # fmt: skip


def _look(cluster: Cluster, resource: str, name: str) -> tuple[dict[str, Any] | None, str]:
    """The object, or None and why: `missing` or `not allowed`."""
    try:
        return cluster.call("GET", cluster.core(resource, name)), ""
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return None, "missing" if error.status == 404 else "not allowed"


def service_account(cluster: Cluster, settings: LaunchSettings) -> Finding:
    name = settings.service_account
    found, why = _look(cluster, "serviceaccounts", name)
    if found is not None:
        named = {secret["name"] for secret in found.get("imagePullSecrets") or ()}
        lacking = sorted(set(settings.pull_secrets) - named) if settings.launcher == "trainjob" else []
        if lacking:
            return Finding(
                name="service account", state="missing", found=f"{name} doesn't name the pull secret(s) {', '.join(lacking)}, and a TrainJob can't",
                remedy=f"Add them to imagePullSecrets of service account {name}.",
            )  # fmt: skip
        return Finding(name="service account", state="ok", found=name)
    if why == "not allowed":
        return Finding(name="service account", state="note", found=f"{name} can't be looked up")
    return Finding(
        name="service account", state="missing", found=f"launch.service_account={name} does not exist in namespace {cluster.namespace}",
        remedy="Create it (manifests/base), or name another one.",
    )  # fmt: skip


def secrets(cluster: Cluster, settings: LaunchSettings) -> Iterator[Finding]:
    """That they exist; their values are dropped unread. The launcher's own Role doesn't let it read any, so mostly this is silent."""
    wanted = dict.fromkeys(settings.pull_secrets, "launch.pull_secrets")
    keys: dict[str, set[str]] = {}
    for variable in settings.secret_env:
        wanted.setdefault(variable.secret, "launch.secret_env")
        keys.setdefault(variable.secret, set()).add(variable.key)
    for name, setting in wanted.items():
        if not cluster.can_i("get", "secrets", name=name):
            continue
        found, _ = _look(cluster, "secrets", name)
        absent = sorted(keys.get(name, set()) - set((found or {}).get("data") or {}))
        if found is None:
            yield Finding(
                name="secret", state="missing", found=f"{setting} names {name}, which does not exist in namespace {cluster.namespace}",
                remedy="Create it there; pods would wait for it.",
            )  # fmt: skip
        elif absent:
            yield Finding(
                name="secret", state="missing", found=f"{setting}: Secret {name} has no key {', '.join(absent)}",
                remedy="Add the key, or correct the setting.",
            )  # fmt: skip
        else:
            yield Finding(name="secret", state="ok", found=name)


def claims(cluster: Cluster, settings: LaunchSettings) -> Iterator[Finding]:
    for name in dict.fromkeys(volume.claim for volume in settings.volumes):
        found, why = _look(cluster, "persistentvolumeclaims", name)
        if found is None and why == "not allowed":
            yield Finding(name="claim", state="note", found=f"{name} can't be looked up")
        elif found is None:
            yield Finding(
                name="claim", state="missing", found=f"launch.volumes names claim {name}, which does not exist in namespace {cluster.namespace}",
                remedy="Create it there; pods would wait for it.",
            )  # fmt: skip
        else:
            yield _claim(name, found, settings)


def _claim(name: str, found: Mapping[str, Any], settings: LaunchSettings) -> Finding:
    phase, modes = found.get("status", {}).get("phase", ""), set(found["spec"].get("accessModes") or ())
    if phase == "Lost" or (phase != "Bound" and not found["spec"].get("storageClassName")):
        return Finding(
            name="claim", state="missing", found=f"{name} is {phase or 'not bound'}, and no storage class will bind it",
            remedy="Create the PersistentVolume that it waits for, or name another claim.",
        )  # fmt: skip
    if settings.nodes > 1 and modes <= {"ReadWriteOnce", "ReadWriteOncePod"}:
        many = bool(settings.instance) or modes == {"ReadWriteOncePod"}
        return Finding(
            name="claim", state="missing" if many else "note",
            found=f"{name} is {' and '.join(sorted(modes))}, but launch.nodes={settings.nodes} pods mount it",
            remedy="Use a ReadWriteMany claim (FSx for Lustre, EFS, NFS).",
        )  # fmt: skip
    if phase != "Bound":
        return Finding(name="claim", state="note", found=f"{name} is {phase}; its storage class may bind it when the first pod comes")
    return Finding(name="claim", state="ok", found=f"{name} is bound")


def devices(cluster: Cluster, settings: LaunchSettings) -> Iterator[Finding]:
    """Do nodes of the instance type offer the devices that the table promises? Without its plugin a node has none."""
    if not settings.instance:
        return
    try:
        nodes, _ = list_nodes(cluster, Need.of(settings))
    except ApiError as error:
        if error.status != 403:
            raise
        return
    in_zone = [node for node in nodes if settings.zone in ("", node.zone)]
    if not in_zone:
        yield Finding(name="nodes", state="note", found=f"no {settings.instance} node is there now" + _in(settings.zone))
        return
    yield from _compare(in_zone, settings)


def _in(zone: str) -> str:
    return f" in {ZONE_LABEL}={zone}" if zone else ""


def _compare(nodes: Iterable[Any], settings: LaunchSettings) -> Iterator[Finding]:
    wanted = {name: amount for name, amount in parse_resources(settings.pod_resources).items() if name not in ("cpu", "memory")}
    known = INSTANCES.get(settings.instance)
    source = "the instance type's" if known else "launch.resources'"
    nodes = list(nodes)
    for name, amount in wanted.items():
        short = [node for node in nodes if node.allocatable.get(name, Fraction(0)) < amount]
        offered = max((node.allocatable.get(name, Fraction(0)) for node in nodes), default=Fraction(0))
        # Too few nodes that are all sound is placement's to tell.
        if not short or len(nodes) - len(short) >= (settings.nodes if settings.capacity == "static" else 1):
            yield Finding(
                name="nodes", state="ok", found=f"{len(nodes) - len(short)} {settings.instance} offer {show_quantity(name, amount)} {name}"
            )
            continue
        tool = "Reserve huge pages at boot" if name.startswith("hugepages-") else "See that its device plugin runs on them"
        yield Finding(
            name="nodes", state="missing",
            found=f"{len(short)} of {len(nodes)} {settings.instance} node(s){_in(settings.zone)} offer less {name} than {source} "
            f"{show_quantity(name, amount)} (at most {show_quantity(name, offered)} allocatable)",
            remedy=f"{tool}, or correct launch.instance and launch.resources.",
        )  # fmt: skip
