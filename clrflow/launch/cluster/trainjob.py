"""A plan as a TrainJob of Kubeflow Trainer 2.0, and its status in the launcher's words.

A TrainJob refers to a runtime, a pod template that the cluster's administrator owns, and overrides parts of it. What 2.0 can't override stays with the
runtime: security context, affinity, pull secrets, priority, deadlines. The API is v1alpha1 and its overrides changed with each release; this
module is held against the CRD of 2.0.0.
"""

from __future__ import annotations

from typing import Any

from clrflow.launch.cluster.plan import JobPlan, JobState

NODE = "node"
"""Name of the replicated job and of its container in Trainer's torch runtimes."""


class TrainJobBackend:
    """trainer.kubeflow.org/v1alpha1."""

    kind = "TrainJob"
    group = "trainer.kubeflow.org"
    version = "v1alpha1"
    plural = "trainjobs"
    container = NODE

    def __init__(self, runtime: str = "torch-distributed"):
        self.runtime = runtime

    def render(self, plan: JobPlan) -> dict[str, Any]:
        """The object to create; its pods differ from the plan's in what the runtime alone can say."""
        spec = plan.pod["spec"]
        (container,) = spec["containers"]
        trainer: dict[str, Any] = {
            "image": container["image"],
            "command": container["command"],
            "env": container["env"],
            "numNodes": plan.nodes,
            "numProcPerNode": plan.processes_per_node,
        }
        if resources := container.get("resources"):
            trainer["resourcesPerNode"] = resources
        override: dict[str, Any] = {
            "targetJobs": [{"name": NODE}],
            "serviceAccountName": spec["serviceAccountName"],
            "volumes": spec["volumes"],
            "containers": [{"name": NODE, "volumeMounts": container["volumeMounts"]}],
        }
        for part in ("nodeSelector", "tolerations"):
            if spec[part]:
                override[part] = spec[part]
        metadata: dict[str, Any] = {"name": plan.name, "namespace": plan.namespace, "labels": plan.labels, "annotations": plan.annotations}
        if plan.owner:
            metadata["ownerReferences"] = [plan.owner]
        return {
            "apiVersion": f"{self.group}/{self.version}",
            "kind": self.kind,
            "metadata": metadata,
            "spec": {
                "runtimeRef": {"apiGroup": self.group, "kind": "ClusterTrainingRuntime", "name": self.runtime},
                "labels": plan.pod["metadata"]["labels"],
                "annotations": plan.pod["metadata"]["annotations"],
                "trainer": trainer,
                "podSpecOverrides": [override],
            },
        }

    def state(self, job: dict[str, Any]) -> JobState:
        """Complete and Failed are conditions; what runs shows only in the counts of child jobs."""
        status = job.get("status", {})
        holding = {condition["type"]: condition for condition in status.get("conditions") or () if condition["status"] == "True"}
        phases: tuple[tuple[str, Any], ...] = (("Failed", "failed"), ("Complete", "succeeded"), ("Suspended", "pending"))
        for kind, phase in phases:
            if kind in holding:
                return JobState(phase=phase, reason=holding[kind].get("reason", ""), message=holding[kind].get("message", ""))
        active = any(child.get("active") or child.get("ready") for child in status.get("jobsStatus") or ())
        return JobState(phase="running" if active else "pending")

    def pod_selector(self, name: str) -> str:
        """Label selector of the job's pods; the label is JobSet's, whose name is the TrainJob's."""
        return f"jobset.sigs.k8s.io/jobset-name={name}"

    def rank(self, pod: dict[str, Any]) -> int:
        """Rank of the pod's node: its index in the child job."""
        index = "batch.kubernetes.io/job-completion-index"
        metadata = pod["metadata"]
        return int(metadata.get("labels", {}).get(index) or metadata.get("annotations", {}).get(index) or 0)
