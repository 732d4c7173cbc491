"""Settings of where and how the training job runs; no result depends on them, so no step's key holds them."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from clrflow.launch.cluster.instances import EFA, GPU, HUGE_PAGES, INSTANCES, closest_instances
from clrflow.launch.cluster.quantity import parse_quantity
from clrflow.settings import Settings

Launcher = Literal["local", "pytorchjob", "trainjob"]

_GIVEN_BY_OPERATOR = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _as_quantity(value: object) -> object:
    """YAML reads `cpu: 8` as a number; Kubernetes takes both."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if isinstance(text, str):
        parse_quantity(text)
    return text


Quantity = Annotated[str, pydantic.BeforeValidator(_as_quantity)]
"""A Kubernetes quantity: 8, 500m, 64Gi."""


class Volume(Settings):
    """A claim that pods mount, e.g. of FSx for Lustre; the workspace and the tables lie on it unless they are on an object store."""

    claim: str = pydantic.Field(min_length=1)
    """Name of a PersistentVolumeClaim in the namespace."""
    path: str = pydantic.Field(pattern="^/")
    """Where it is mounted, the same in every pod."""
    read_only: bool = False
    """True where pods only read it, e.g. the input tables."""


class SecretEnv(Settings):
    """An environment variable that comes from a Secret; its value is never read, logged or written by clrflow."""

    name: str = pydantic.Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the variable."""
    secret: str = pydantic.Field(min_length=1)
    """Name of the Secret in the namespace."""
    key: str = pydantic.Field(min_length=1)
    """Key in the Secret."""


class SecretKey(Settings):
    """One value of a Secret; never read, logged or written by clrflow."""

    secret: str = pydantic.Field(min_length=1)
    """Name of the Secret in the namespace."""
    key: str = pydantic.Field(min_length=1)
    """Key in the Secret."""


class Toleration(Settings):
    """A node taint that the job's pods accept; tolerations of GPU and EFA node pools are added by themselves."""

    key: str = pydantic.Field(min_length=1)
    """Key of the taint."""
    value: str = ""
    """Value of the taint; "" means any."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; "" means any."""


class LaunchSettings(Settings):
    """Where the training job runs: torchrun on this machine, or a job on a cluster."""

    launcher: Launcher = "local"
    """`local`: torchrun on the machine (or in the pod) of the step. `pytorchjob`: a PyTorchJob of the Kubeflow training operator.
    `trainjob`: a TrainJob of Kubeflow Trainer v2. All other settings here have no effect when local."""
    image: str = ""
    """Image of the job's pods (images/trainer); must be given for a job on a cluster."""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When nodes pull the image."""
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets with which nodes pull the image. A TrainJob's pods take those of their service account, which must name them."""
    namespace: str = ""
    """Namespace of the job; "" means that of the step's own pod, else that of the kubeconfig's context."""
    service_account: str = "clrflow-job"
    """Service account of the job's pods; it needs no rights in the cluster, only those on the storage."""
    nodes: int = pydantic.Field(default=1, ge=1)
    """Pods of the job, one a node; training.num_processes are shared evenly among them."""
    instance: str = ""
    """EC2 instance type of the node pool, e.g. p5.48xlarge: says GPUs, EFA devices and huge pages a pod; "" means CPU pods."""
    transport: Literal["efa", "tcp"] = "tcp"
    """How NCCL talks between nodes. `efa` needs an instance type with EFA, and the job fails if NCCL's log shows sockets."""
    resources: dict[str, Quantity] = pydantic.Field(default_factory=dict)
    """Requests and limits of a pod, e.g. {cpu: "8", memory: 64Gi}; added to what `instance` says, and stronger. An instance type that clrflow
    doesn't know may be used when cpu, memory and nvidia.com/gpu (with efa also vpc.amazonaws.com/efa and hugepages-2Mi) are all given here."""
    shared_memory: Quantity = "2Gi"
    """Size of /dev/shm (memory of the pod); processes of one pod exchange tensors through it."""
    capacity: Literal["static", "autoscaled"] = "static"
    """`static`: nodes are there, and a zone with enough free ones is picked before the job is made. `autoscaled`: nodes come when pods wait."""
    zone: str = ""
    """Zone in which all pods run; "" means picked by clrflow (static) or left to the autoscaler, in one zone, too."""
    provision_timeout_s: float = pydantic.Field(default=900, gt=0)
    """Longest wait until all pods are scheduled; with static capacity only what the scheduler and image pulls take is to be expected."""
    elastic: bool = False
    """False: a master and workers, and a lost rank makes the launcher start the job again from its checkpoint. True: workers only, which
    meet again by themselves (c10d) when a lost one came back."""
    max_restarts: int = pydantic.Field(default=3, ge=0)
    """Restarts of the job or of its processes, all kinds together, before the step fails."""
    deadline_s: float = pydantic.Field(default=86400, gt=0)
    """Longest time from the job's start to its end, restarts included."""
    stall_timeout_s: float = pydantic.Field(default=1800, gt=0)
    """Longest silence of the job's first pod while it runs; training says something every few seconds."""
    lease_s: float = pydantic.Field(default=180, ge=5)
    """How long a job lives on without a launcher that follows it; then it saves a checkpoint and ends."""
    grace_s: int = pydantic.Field(default=120, ge=1)
    """Seconds that a pod has from SIGTERM to its end: for its last checkpoint when its node is drained."""
    ttl_s: int = pydantic.Field(default=86400, ge=0)
    """Seconds after which the cluster removes a finished job and its logs."""
    volumes: tuple[Volume, ...] = ()
    """Claims that the job's pods and, in a compiled pipeline, the steps' pods mount."""
    env: dict[str, str] = pydantic.Field(default_factory=dict)
    """Environment variables of the job's pods and, in a compiled pipeline, of the steps' pods; not for secrets."""
    secret_env: tuple[SecretEnv, ...] = ()
    """Environment variables from Secrets, for the same pods."""
    webhook: SecretKey | None = None
    """Where the URL lies that the exit handler of a compiled pipeline tells of a failed run or a held model; null tells nobody. No effect
    outside Kubeflow Pipelines."""
    step_resources: dict[str, dict[Literal["cpu", "memory"], Quantity]] = pydantic.Field(default_factory=dict)
    """Requests of the steps' pods in a compiled pipeline, by step, e.g. {bootstrap: {cpu: "8", memory: 64Gi}}; they replace the built-in
    ones one by one. No effect on the job's pods (`resources`) and outside Kubeflow Pipelines."""
    node_selector: dict[str, str] = pydantic.Field(default_factory=dict)
    """Labels that the job's nodes must have, beside those that `instance` and `zone` ask for."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that the job's pods accept, beside those of GPU and EFA node pools."""
    labels: dict[str, str] = pydantic.Field(default_factory=dict)
    """More labels of the job and its pods, e.g. {kueue.x-k8s.io/queue-name: training}."""
    annotations: dict[str, str] = pydantic.Field(default_factory=dict)
    """More annotations of the job's pods."""
    priority_class: str = ""
    """PriorityClass of the pods; "" means the cluster's default."""
    runtime: str = pydantic.Field(default="torch-distributed", min_length=1)
    """ClusterTrainingRuntime that a TrainJob refers to. What a TrainJob of Trainer 2.0 can't say of its pods is the runtime's: security context,
    affinity, pull secrets, priority, deadline. No effect unless launcher=trainjob."""

    @property
    def pod_resources(self) -> dict[str, str]:
        """Requests and limits of a pod: what the instance type offers, then what `resources` says."""
        known = INSTANCES.get(self.instance)
        return {**(known.pod_resources(efa=self.transport == "efa") if known else {}), **self.resources}

    @property
    def gpus_per_node(self) -> int:
        """GPUs that a pod asks for; 0 for CPU pods."""
        return int(parse_quantity(self.pod_resources.get(GPU, "0")))

    @pydantic.model_validator(mode="after")
    def _mounts_are_apart(self) -> LaunchSettings:
        taken = {"/tmp": "the pods' scratch folder", "/dev/shm": "the pods' shared memory"}  # noqa: S108
        for volume in self.volumes:
            path = volume.path.rstrip("/") or "/"
            if path in taken or path == "/":
                raise ValueError(
                    f"launch.volumes mounts claim {volume.claim} at {volume.path}, which is {taken.get(path, 'the root of the image')}; "
                    "give another path"
                )
            taken[path] = f"taken by claim {volume.claim}"
        return self

    @pydantic.model_validator(mode="after")
    def _can_be_launched(self) -> LaunchSettings:
        if self.launcher == "local":
            return self
        if not self.image:
            raise ValueError(
                f"launch.launcher={self.launcher} starts pods, but launch.image is empty; give the trainer image that the cluster can pull"
            )
        for name in (*self.env, *(secret.name for secret in self.secret_env)):
            if name in _GIVEN_BY_OPERATOR or name.startswith("PET_"):
                raise ValueError(f"launch.env or launch.secret_env sets {name}, which the operator gives each pod of the job; leave it out")
        if self.launcher == "trainjob":
            self._refuse_what_a_trainjob_lacks()
        return self

    @pydantic.model_validator(mode="after")
    def _instance_is_described(self) -> LaunchSettings:
        known = INSTANCES.get(self.instance)
        if self.transport == "efa" and not self.instance:
            raise ValueError(
                "launch.transport=efa, but launch.instance is empty; give the instance type of the EFA node pool, e.g. p5.48xlarge, or set "
                "launch.transport=tcp"
            )
        if not self.instance or known:
            return self
        needed = ["cpu", "memory", GPU, *([EFA, HUGE_PAGES] if self.transport == "efa" else [])]
        if missing := [name for name in needed if name not in self.resources]:
            raise ValueError(
                f"launch.instance={self.instance} is not in the table of EFA instance types (close to it: {', '.join(closest_instances(self.instance))}"
                f"), so launch.resources must say all that its pods need; {', '.join(missing)} missing there"
            )
        return self

    def _refuse_what_a_trainjob_lacks(self) -> None:
        lacking = {
            "launch.elastic=true": self.elastic and "its torch runtime has no elastic form",
            "launch.priority_class": self.priority_class and "set it in the runtime that launch.runtime names",
        }
        for setting, why in lacking.items():
            if why:
                raise ValueError(f"{setting} can't be used with launch.launcher=trainjob: {why}; or use pytorchjob")
