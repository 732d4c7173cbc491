"""What a cluster must have to run the training job of some settings, each with the remedy when it hasn't."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

from clrflow import storage
from clrflow.errors import ClrflowError
from clrflow.launch.settings import LaunchSettings
from pipelines.doctor import Check


def check_cluster(settings: LaunchSettings, workspace: str, *, pull: bool = False, timeout_s: float = 300) -> Iterator[Check]:
    """One check after the other, in the order in which one would repair things; stops where the API server can't be reached.

    With `pull` a small pod is run in the job's image, which tells whether it can be pulled and whether pods can write the workspace.
    """
    from clrflow.launch.cluster import placement, preflight, probe
    from clrflow.launch.cluster.api import Cluster
    from clrflow.launch.cluster.planning import backend_of

    try:
        cluster = Cluster.connect(settings.namespace)
        version = cluster.call("GET", "/version", patience_s=0)["gitVersion"]
    except ClrflowError as error:
        yield Check(name="api server", state="missing", found=str(error), remedy="Check KUBECONFIG, its context and your network.")
        return
    yield Check(
        name="api server", state="ok", found=f"Kubernetes {version} at {cluster.api.configuration.host}, namespace {cluster.namespace}"
    )
    for finding in preflight.findings(cluster, backend_of(settings), settings):
        yield Check(name=finding.name, state=finding.state, found=finding.found, remedy=finding.remedy)
    try:
        placed = placement.choose_zone(cluster, settings)
        yield Check(name="room", state="ok", found=_room(settings, placed.zone))
        for note in placed.notes:
            yield Check(name="room", state="note", found=note)
    except placement.NoRoom as error:
        yield Check(name="room", state="missing", found=str(error))
    yield from _workspace(settings, workspace, from_pods=pull)
    if not settings.image:
        yield Check(name="image", state="missing", found="launch.image is empty", remedy="Give the trainer image that nodes can pull.")
    elif pull:
        for finding in probe.probe(cluster, settings, workspace, timeout_s=timeout_s):
            yield Check(name=finding.name, state=finding.state, found=finding.found, remedy=finding.remedy)
    else:
        yield Check(name="image", state="note", found=f"{settings.image} was not pulled", remedy="Add --pull to run a small pod in it.")


def _room(settings: LaunchSettings, zone: str) -> str:
    pods = f"{settings.nodes} pod(s)" + (f" on {settings.instance}" if settings.instance else "")
    if settings.capacity == "autoscaled":
        return f"{pods} may be waited for" + (f" in zone {zone}" if zone else "")
    return f"{pods} fit" + (f" into zone {zone}" if zone else "")


def _workspace(settings: LaunchSettings, workspace: str, *, from_pods: bool) -> Iterator[Check]:
    """From here; and, without running anything, whether pods would see the same place."""
    started = time.monotonic()
    place = storage.join(workspace, f"clrflow-doctor-{uuid.uuid4().hex[:8]}.txt")
    mounted = any(f"{workspace}/".startswith(volume.path.rstrip("/") + "/") for volume in settings.volumes)
    if storage.is_local(workspace) and not mounted:
        yield Check(
            name="storage", state="missing", found=f"{workspace} is a folder of this machine, and launch.volumes mounts nothing there in pods",
            remedy="Give --workspace on an object store, or a path that a claim in launch.volumes holds.",
        )  # fmt: skip
        return
    try:
        storage.write_text(place, "probe")
        storage.remove(place)
    except Exception as error:  # each store has errors of its own
        yield Check(
            name="storage", state="note" if mounted else "missing", found=f"{workspace} can't be written from here: {type(error).__name__}: {error}"[:300],
            remedy="The step that starts the job must write there too: run it where the claim is mounted, or with the store's credentials.",
        )  # fmt: skip
        return
    yield Check(name="storage", state="ok", found=f"{workspace} can be written from here ({time.monotonic() - started:.2f} s)")
    if not from_pods:
        yield Check(name="storage", state="note", found="not tried from a pod", remedy="Add --pull to try it from one.")
