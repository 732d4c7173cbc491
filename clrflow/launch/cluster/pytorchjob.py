"""A plan as a PyTorchJob of the Kubeflow training operator, and its status in the launcher's words.

Static: a Master and Workers, never restarted by the operator; the launcher makes the whole job anew from its checkpoint, as a rank that comes back
alone would find no peers waiting. Elastic: Workers only, which meet by c10d on worker 0; the operator replaces a pod that was killed.
"""

from __future__ import annotations

import copy
from typing import Any

from clrflow.launch.cluster.plan import JobPlan, JobState
from clrflow.launch.cluster.pods import CONTAINER

DEADLINE_MARGIN_S = 60
"""The cluster's own deadlines end a job that no launcher follows any more; one that does is quicker, and says why."""


class PyTorchJobBackend:
    """kubeflow.org/v1, as of training operator 1.8 and 1.9."""

    kind = "PyTorchJob"
    group = "kubeflow.org"
    version = "v1"
    plural = "pytorchjobs"
    container = CONTAINER

    def render(self, plan: JobPlan) -> dict[str, Any]:
        """The object to create."""
        metadata: dict[str, Any] = {"name": plan.name, "namespace": plan.namespace, "labels": plan.labels, "annotations": plan.annotations}
        if plan.owner:
            metadata["ownerReferences"] = [plan.owner]
        pod = copy.deepcopy(plan.pod)
        # Operator 1.8.1 notices runPolicy's deadline only when something else about the job changes; the kubelet always notices this one.
        pod["spec"]["activeDeadlineSeconds"] = plan.deadline_s + DEADLINE_MARGIN_S
        spec: dict[str, Any] = {
            "nprocPerNode": str(plan.processes_per_node),
            "runPolicy": {
                # Pods that still run hold GPUs; those that ended keep the log that says why.
                "cleanPodPolicy": "Running",
                "ttlSecondsAfterFinished": plan.ttl_s,
                "activeDeadlineSeconds": plan.deadline_s + DEADLINE_MARGIN_S,
                # Reached only if no launcher counts any more. With 0 the operator would delete a failed pod, and its log, at the first failure.
                "backoffLimit": max(1, plan.max_restarts),
            },
        }
        if plan.elastic:
            # Fewer nodes would need another sharding of the tables, so the job waits for a lost one.
            spec["elasticPolicy"] = {
                "rdzvBackend": "c10d", "rdzvId": plan.name, "minReplicas": plan.nodes, "maxReplicas": plan.nodes, "maxRestarts": plan.max_restarts,
            }  # fmt: skip
            # 128 and above (killed, or SIGTERM when its node is drained) is retried; a program's own failure isn't.
            spec["pytorchReplicaSpecs"] = {"Worker": {"replicas": plan.nodes, "restartPolicy": "ExitCode", "template": pod}}
        else:
            spec["pytorchReplicaSpecs"] = {"Master": {"replicas": 1, "restartPolicy": "Never", "template": pod}}
            if plan.nodes > 1:
                worker = {"replicas": plan.nodes - 1, "restartPolicy": "Never", "template": copy.deepcopy(pod)}
                spec["pytorchReplicaSpecs"]["Worker"] = worker
        return {"apiVersion": f"{self.group}/{self.version}", "kind": self.kind, "metadata": metadata, "spec": spec}

    def state(self, job: dict[str, Any]) -> JobState:
        """The strongest of the conditions that hold; old ones stay in the list with status False."""
        holding = {
            condition["type"]: condition for condition in job.get("status", {}).get("conditions") or () if condition["status"] == "True"
        }
        for kind, phase in _PHASES:
            if kind in holding:
                return JobState(phase=phase, reason=holding[kind].get("reason", ""), message=holding[kind].get("message", ""))
        return JobState(phase="pending")

    def pod_selector(self, name: str) -> str:
        """Label selector of the job's pods."""
        return f"training.kubeflow.org/job-name={name}"

    def rank(self, pod: dict[str, Any]) -> int:
        """Rank of the pod's node: what the operator gave it, else (elastic) its index among the workers."""
        for container in pod["spec"]["containers"]:
            for variable in container.get("env") or ():
                if variable["name"] == "PET_NODE_RANK":
                    return int(variable["value"])
        return int(pod["metadata"]["labels"]["training.kubeflow.org/replica-index"])


_PHASES: tuple[tuple[str, Any], ...] = (
    ("Failed", "failed"), ("Succeeded", "succeeded"), ("Suspended", "pending"), ("Restarting", "restarting"), ("Running", "running"),
    ("Created", "pending"),
)  # fmt: skip
