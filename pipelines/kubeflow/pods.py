"""What the pods of a compiled pipeline are given beside their image: mounts, environment, secrets, requests.

All of it is fixed when the pipeline is compiled, from the part `launch` of the settings, since Kubeflow takes it from the compiled
specification only. kfp.local ignores all but plain environment variables, so the same pipeline runs on a laptop.
"""

from __future__ import annotations

from typing import Any

from clrflow.errors import ConfigError
from clrflow.launch.settings import LaunchSettings
from clrflow.steps import STEPS

REQUESTS: dict[str, dict[str, str]] = {
    "configure": {"cpu": "250m", "memory": "512Mi"},
    "validate_data": {"cpu": "500m", "memory": "2Gi"},
    "bootstrap": {"cpu": "500m", "memory": "3Gi"},
    "semantic_ids": {"cpu": "500m", "memory": "2Gi"},
    "train": {"cpu": "500m", "memory": "2Gi"},
    "evaluate": {"cpu": "500m", "memory": "2Gi"},
    "gate": {"cpu": "250m", "memory": "512Mi"},
    "export_index": {"cpu": "500m", "memory": "2Gi"},
    "publish": {"cpu": "250m", "memory": "512Mi"},
    "clean_up": {"cpu": "100m", "memory": "256Mi"},
}
"""Requests without limits: enough for a small log, and for a step to be placed at all; launch.step_resources replaces them."""

# GPUs and EFA live in the job's pods, never here, where they would be held while a step only waits for its job.
_LAUNCHING = {"cpu": "250m", "memory": "1Gi"}

FIELDS = {
    "CLRFLOW_KFP_WORKFLOW": "metadata.labels['workflows.argoproj.io/workflow']",
    "CLRFLOW_KFP_RUN_ID": "metadata.labels['pipeline/runid']",
}
"""What a step's pod learns of its own run, for the launcher: whom the job belongs to, and whether the run is being terminated."""


def dress(task: Any, step: str, launch: LaunchSettings) -> None:
    """Give a task of the pipeline what its pod needs."""
    from kfp import kubernetes

    task.set_caching_options(False)  # a path may hold new data; steps find their own finished results by content
    task.set_env_variable("PYTHONUNBUFFERED", "1")  # a pod's log is read while it runs
    for name, value in launch.env.items():
        task.set_env_variable(name, value)
    requests = requests_of(step, launch)
    task.set_cpu_request(requests["cpu"])
    task.set_memory_request(requests["memory"])
    for name, path in FIELDS.items():
        kubernetes.use_field_path_as_env(task, name, path)
    for volume in launch.volumes:
        kubernetes.mount_pvc(task, volume.claim, volume.path)
    for variable in launch.secret_env:
        kubernetes.use_secret_as_env(task, variable.secret, {variable.key: variable.name})
    if launch.pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(launch.pull_secrets))
    if launch.image_pull_policy != "IfNotPresent":
        kubernetes.set_image_pull_policy(task, launch.image_pull_policy)
    if step == "train" and launch.launcher == "local":
        # Processes of one pod exchange tensors through it; a container's own /dev/shm has 64 MB.
        kubernetes.empty_dir_mount(task, "shared-memory", "/dev/shm", medium="Memory", size_limit=launch.shared_memory)  # noqa: S108
    if step == "clean_up" and launch.webhook is not None:
        # Optional: a Secret that is missing must not keep the exit handler from ending jobs.
        kubernetes.use_secret_as_env(task, launch.webhook.secret, {launch.webhook.key: "CLRFLOW_WEBHOOK_URL"}, optional=True)


def requests_of(step: str, launch: LaunchSettings) -> dict[str, str]:
    """CPU and memory that a step's pod asks for."""
    known = ("configure", *STEPS, "clean_up")
    for name in launch.step_resources:
        if name not in known:
            raise ConfigError(f"launch.step_resources.{name}: there is no step {name!r}; there are {', '.join(known)}.")
    base = _LAUNCHING if step == "train" and launch.launcher != "local" else REQUESTS[step]
    return {**base, **{str(name): value for name, value in launch.step_resources.get(step, {}).items()}}
