"""A tiny pod that answers two questions by being run: can nodes pull the job's image, and can its pods write the workspace?

It is made of the same parts as the job's pods (user, security context, claims, secrets, selectors, tolerations) without their devices, so what
works for it works for them. It is deleted whatever happens.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from clrflow.errors import ClrflowError
from clrflow.launch.cluster import pods
from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.finding import Finding
from clrflow.launch.cluster.naming import APP_LABEL
from clrflow.launch.settings import LaunchSettings

PULL_FAILURES = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
CONFIG_FAILURES = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
CODE = """
import sys
from clrflow import storage
place = storage.join(sys.argv[1], sys.argv[2])
storage.write_text(place, "probe")
assert storage.read_bytes(place) == b"probe"
storage.remove(place)
"""


def probe_pod(settings: LaunchSettings, workspace: str, name: str) -> dict[str, Any]:
    """The pod; it ends by itself, too."""
    # The job's devices are left out, so its huge pages would have nothing to stand on.
    plain = settings.model_copy(update={"instance": "", "transport": "tcp", "resources": {}})
    small = {"cpu": "250m", "memory": "512Mi"}
    environment = [{"name": key, "value": value} for key, value in {"HOME": pods.SCRATCH, "TMPDIR": pods.SCRATCH, **settings.env}.items()]
    secret = [
        {"name": variable.name, "valueFrom": {"secretKeyRef": {"name": variable.secret, "key": variable.key}}}
        for variable in settings.secret_env
    ]
    container = {
        "name": "probe", "image": settings.image, "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-c", CODE, workspace, f"{name}.txt"], "env": [*environment, *secret],
        "resources": {"requests": small, "limits": small}, "securityContext": pods.container_security(efa=False),
        "volumeMounts": pods.mounts(plain),
    }  # fmt: skip
    annotations = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {APP_LABEL: "clrflow", "sidecar.istio.io/inject": "false"}, "annotations": annotations},
        "spec": {
            "restartPolicy": "Never", "activeDeadlineSeconds": 600, "terminationGracePeriodSeconds": 1,
            "serviceAccountName": settings.service_account, "automountServiceAccountToken": False, "enableServiceLinks": False,
            "securityContext": pods.pod_security(), "containers": [container], "volumes": pods.volumes(plain),
            "nodeSelector": pods.node_selector(settings), "tolerations": pods.tolerations(settings),
            "imagePullSecrets": [{"name": secret} for secret in settings.pull_secrets],
        },
    }  # fmt: skip


def probe(cluster: Cluster, settings: LaunchSettings, workspace: str, *, timeout_s: float = 300) -> list[Finding]:
    """Run it and say what it found: `image` and `storage`."""
    name = f"clrflow-doctor-{uuid.uuid4().hex[:8]}"
    started = time.monotonic()
    try:
        cluster.call("POST", cluster.core("pods"), body=probe_pod(settings, workspace, name), patience_s=0)
    except ApiError as error:
        remedy = "Use an account that may create pods, or leave out --pull." if error.status == 403 else "Correct what it names."
        return [Finding(name="image", state="missing", found=str(error), remedy=remedy)]
    try:
        seen: dict[str, Any] = {}
        while time.monotonic() - started < timeout_s:
            seen = cluster.call("GET", cluster.core("pods", name))
            if (finished := _conclude(cluster, seen, settings, workspace, time.monotonic() - started)) is not None:
                return finished
            time.sleep(1)
        return [_waited_in_vain(seen, timeout_s)]
    finally:
        cluster.call("DELETE", cluster.core("pods", name), query={"gracePeriodSeconds": 0})


def _conclude(cluster: Cluster, pod: dict[str, Any], settings: LaunchSettings, workspace: str, took: float) -> list[Finding] | None:
    """None while it is under way."""
    status = pod.get("status", {})
    state: dict[str, Any] = next((container["state"] for container in status.get("containerStatuses") or ()), {})
    waiting = state.get("waiting", {})
    if waiting.get("reason") in PULL_FAILURES:
        remedy = (
            "Correct launch.image, push it, or give launch.pull_secrets; with images loaded into the nodes set launch.image_pull_policy."
        )
        return [_missing("image", f"launch.image={settings.image}: {waiting['reason']}: {_short(waiting)}", remedy)]
    if waiting.get("reason") in CONFIG_FAILURES:
        return [_missing("image", f"{waiting['reason']}: {_short(waiting)}", "Correct the setting that it names.")]
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    pulled = Finding(name="image", state="ok", found=f"{settings.image} was pulled and started on a node within {took:.0f} s")
    if status["phase"] == "Succeeded":
        return [pulled, Finding(name="storage", state="ok", found=f"a pod wrote, read and removed a file in {workspace}")]
    code = state.get("terminated", {}).get("exitCode", status.get("reason", "?"))
    if code in (127, 128):
        return [
            _missing(
                "image", f"{settings.image} has no `python` that starts (exit code {code})", "Give an image made from images/Dockerfile."
            )
        ]
    last = _log(cluster, pod["metadata"]["name"])[-1:] or ["nothing"]
    remedy = (
        f"Let user {pods.USER} write there, mount the claim that holds it (launch.volumes), or give the pods credentials for the store."
    )
    return [pulled, _missing("storage", f"a pod can't use {workspace} (exit code {code}): {last[0][:300]}", remedy)]


def _log(cluster: Cluster, name: str) -> list[str]:
    try:
        with cluster.lines(cluster.core("pods", name, "log"), {"tailLines": 20}, timeout_s=10) as lines:
            return [line for line in lines if line.strip()]
    except ClrflowError:
        return []


def _missing(name: str, found: str, remedy: str) -> Finding:
    return Finding(name=name, state="missing", found=found, remedy=remedy)


def _short(waiting: dict[str, Any]) -> str:
    return str(waiting.get("message", ""))[:300]


def _waited_in_vain(pod: dict[str, Any], timeout_s: float) -> Finding:
    conditions = pod.get("status", {}).get("conditions") or ()
    why = next((item.get("message", "") for item in conditions if item["type"] == "PodScheduled" and item["status"] == "False"), "")
    return _missing(
        "image", f"a small pod did not end within {timeout_s:.0f} s: {why or 'it was scheduled, but its image is still being pulled'}",
        "Free a node of the job's kind, or give more time.",
    )  # fmt: skip
