"""The pod of a job, in Kubernetes' words: what it runs, may do, asks for and where it may land. The same for every backend.

Non-root with nothing of the node but the devices it asks for; the root file system is read-only and /tmp is scratch. Everything that is
particular to GPUs and EFA stands here and in instances.py, never in the step's own pod.
"""

from __future__ import annotations

import math
from typing import Any

from clrflow.launch.cluster.instances import EFA, GPU, HUGE_PAGES, INSTANCE_LABEL, NETWORK_LAYER_LABEL, ZONE_LABEL
from clrflow.launch.cluster.naming import JOB_LABEL
from clrflow.launch.cluster.quantity import parse_quantity
from clrflow.launch.lease import place as lease_place
from clrflow.launch.request import JobRequest
from clrflow.launch.settings import LaunchSettings

USER = 10001
"""User and group of clrflow's images."""
SCRATCH, SHARED_MEMORY = "/tmp", "/dev/shm"  # noqa: S108
"""In pods: the only places that can be written, beside the claims."""
CONTAINER = "pytorch"
"""The training operator looks for a container of this name."""
NETWORK_LAYERS = {3: 100, 2: 50, 1: 10}
"""Of NETWORK_LAYER_LABEL, with how much it is worth to share one."""
HOST_LABEL = "kubernetes.io/hostname"
START_MARGIN_S = 300
"""Beyond launch.provision_timeout_s, for images and the first pod's own start."""


def worker_command(request: JobRequest, settings: LaunchSettings) -> list[str]:
    """The worker waits for its peers, starts torchrun from what the operator put into the environment, and passes SIGTERM on."""
    command = ["python", "-u", "-m", "clrflow.launch.worker", "--what", request.what, "--nodes", str(settings.nodes)]
    command += ["--processes", str(request.num_processes // settings.nodes), "--lease", lease_place(request.folder)]
    # Pods of one job may start as far apart as their nodes take to come.
    command += ["--start-timeout-s", str(math.ceil(settings.provision_timeout_s) + START_MARGIN_S)]
    if settings.elastic:
        command.append("--elastic")
    if settings.transport == "efa":
        command += ["--efa-devices", str(int(parse_quantity(settings.pod_resources[EFA])))]
    if settings.gpus_per_node:
        command.append("--check-operator")  # the image's build had no driver to run one
    return [*command, "--", request.module, *request.arguments]


def pod_template(request: JobRequest, settings: LaunchSettings, *, job: str, labels: dict[str, str], zone: str = "") -> dict[str, Any]:
    """metadata and spec of each of the job's pods; `zone` is pinned where it isn't ""."""
    # A queue's label on pods would make Kueue queue each pod by itself, beside the job that it already queues.
    extra = {name: value for name, value in settings.labels.items() if not name.startswith("kueue.x-k8s.io/")}
    # Meshes' sidecars never end by themselves, so the pod would not either; some read the label, some the annotation.
    labels = {**labels, **extra, JOB_LABEL: job, "sidecar.istio.io/inject": "false"}
    annotations = {**settings.annotations, "sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
    spec: dict[str, Any] = {
        "serviceAccountName": settings.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": settings.grace_s,
        "securityContext": pod_security(),
        "containers": [container(request, settings)],
        "volumes": volumes(settings),
        "nodeSelector": node_selector(settings, zone),
        "tolerations": tolerations(settings),
        "affinity": affinity(settings, job, zone),
    }
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def pod_security() -> dict[str, Any]:
    return {
        "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",  # else the kubelet walks through a whole file system of checkpoints at each start
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip


def container_security(*, efa: bool) -> dict[str, Any]:
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if efa:
        capabilities["add"] = ["IPC_LOCK"]  # RDMA registers memory, which must then stay in place
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": capabilities}


def container(request: JobRequest, settings: LaunchSettings) -> dict[str, Any]:
    rendered: dict[str, Any] = {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": worker_command(request, settings),
        "env": environment(request, settings),
        "securityContext": container_security(efa=settings.transport == "efa"),
        "volumeMounts": mounts(settings),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if resources := settings.pod_resources:
        # Equal requests and limits: Guaranteed, so a pod isn't throttled or evicted for its neighbours. Devices demand it anyway.
        rendered["resources"] = {"requests": dict(resources), "limits": dict(resources)}
    return rendered


def environment(request: JobRequest, settings: LaunchSettings) -> list[dict[str, Any]]:
    """Ours first, then the settings' own, which win."""
    processes = request.num_processes // settings.nodes
    cores = int(parse_quantity(settings.pod_resources.get("cpu", "0")))
    values = {
        "HOME": SCRATCH,
        "TMPDIR": SCRATCH,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(max(1, cores // processes)),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **transport_environment(settings),
        **settings.env,
    }
    fields = {"POD_NAME": "metadata.name", "POD_IP": "status.podIP", "NODE_NAME": "spec.nodeName"}
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *(
            {"name": secret.name, "valueFrom": {"secretKeyRef": {"name": secret.secret, "key": secret.key}}}
            for secret in settings.secret_env
        ),
    ]


def transport_environment(settings: LaunchSettings) -> dict[str, str]:
    """NCCL's profile. Gloo needs none: it takes the address of the pod's host name, which is the pod's only interface."""
    # NCCL meets over sockets even when data goes over EFA; bridges and virtual interfaces of the node lead nowhere.
    shared = {"NCCL_SOCKET_IFNAME": "^docker,lo,veth"}
    if settings.transport == "efa":
        # Its log must show which network it took: the launcher fails a job that asked for EFA and got sockets. Socket tuning would be without
        # effect here, and huge pages hold the provider's bounce buffers.
        profile = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "FI_PROVIDER": "efa"}
        return {**shared, **profile, **({"FI_EFA_USE_HUGE_PAGE": "1"} if HUGE_PAGES in settings.pod_resources else {})}
    # Several sockets and threads a peer, as one TCP stream fills a small part of a fast link. NET=Socket keeps an image's EFA plugin out, so
    # that `tcp` is what was asked for.
    return {**shared, "NCCL_NET": "Socket", "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}


def volumes(settings: LaunchSettings) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shared_memory}},
    ]
    if HUGE_PAGES in settings.pod_resources:
        listed.append({"name": "huge-pages", "emptyDir": {"medium": "HugePages"}})
    for place, claim in enumerate(_claims(settings)):
        listed.append({"name": f"claim-{place}", "persistentVolumeClaim": {"claimName": claim}})
    return listed


def mounts(settings: LaunchSettings) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = [
        {"name": "tmp", "mountPath": SCRATCH},
        {"name": "shared-memory", "mountPath": SHARED_MEMORY},
    ]
    if HUGE_PAGES in settings.pod_resources:
        listed.append({"name": "huge-pages", "mountPath": "/dev/hugepages"})
    claims = _claims(settings)
    for volume in settings.volumes:
        listed.append({"name": f"claim-{claims.index(volume.claim)}", "mountPath": volume.path, "readOnly": volume.read_only})
    return listed


def _claims(settings: LaunchSettings) -> list[str]:
    """Each claim once, as one may be mounted at two places."""
    return list(dict.fromkeys(volume.claim for volume in settings.volumes))


def node_selector(settings: LaunchSettings, zone: str = "") -> dict[str, str]:
    selector = dict(settings.node_selector)
    if settings.instance:
        selector[INSTANCE_LABEL] = settings.instance
    if zone or settings.zone:
        selector[ZONE_LABEL] = zone or settings.zone
    return selector


def tolerations(settings: LaunchSettings) -> list[dict[str, str]]:
    """Those of the settings, and the taints by which GPU and EFA node pools keep others away."""
    listed = [
        {
            "key": taint.key, "operator": "Equal" if taint.value else "Exists", **({"value": taint.value} if taint.value else {}),
            **({"effect": taint.effect} if taint.effect else {}),
        }
        for taint in settings.tolerations
    ]  # fmt: skip
    return [*listed, *({"key": device, "operator": "Exists"} for device in (GPU, EFA) if device in settings.pod_resources)]


def affinity(settings: LaunchSettings, job: str, zone: str = "") -> dict[str, Any]:
    """One pod a node (a must where an instance type is given), near each other, and in one zone."""
    if settings.nodes == 1:
        return {}

    def among_themselves(topology: str) -> dict[str, Any]:
        return {"labelSelector": {"matchLabels": {JOB_LABEL: job}}, "topologyKey": topology}

    apart = among_themselves(HOST_LABEL)
    if settings.instance:
        anti: dict[str, Any] = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    else:
        anti = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]}
    near: dict[str, Any] = {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": weight, "podAffinityTerm": among_themselves(f"{NETWORK_LAYER_LABEL}{layer}")}
            for layer, weight in NETWORK_LAYERS.items()
        ]
    }
    if settings.capacity == "autoscaled" and not (zone or settings.zone):
        near["requiredDuringSchedulingIgnoredDuringExecution"] = [among_themselves(ZONE_LABEL)]
    return {"podAntiAffinity": anti, "podAffinity": near}
