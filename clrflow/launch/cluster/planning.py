"""From what a step asks for and the settings to a JobPlan; nothing here talks to the cluster.

Next: pods.py (what a pod is made of), placement.py (where the zone comes from), pytorchjob.py and trainjob.py (the plan in an operator's words).
"""

from __future__ import annotations

import math

from clrflow.errors import BadInput
from clrflow.launch.cluster.identity import Identity
from clrflow.launch.cluster.naming import job_labels, job_name
from clrflow.launch.cluster.plan import Backend, JobPlan
from clrflow.launch.cluster.pods import pod_template
from clrflow.launch.cluster.pytorchjob import PyTorchJobBackend
from clrflow.launch.cluster.trainjob import TrainJobBackend
from clrflow.launch.request import JobRequest
from clrflow.launch.settings import LaunchSettings


def backend_of(settings: LaunchSettings) -> Backend:
    """The backend that `launch.launcher` names."""
    return TrainJobBackend(settings.runtime) if settings.launcher == "trainjob" else PyTorchJobBackend()


def plan_job(request: JobRequest, settings: LaunchSettings, *, namespace: str, identity: Identity, zone: str = "") -> JobPlan:
    """Everything decided. `zone` is what placement chose; "" leaves it to `launch.zone` or the scheduler.

    Raises BadInput where the processes can't be shared among the nodes.
    """
    if request.num_processes % settings.nodes:
        raise BadInput(
            f"{request.what}: {request.num_processes} processes can't be shared evenly among launch.nodes={settings.nodes}; make the first a multiple "
            "of the second."
        )
    name = job_name(request, namespace=namespace, run_id=identity.run_id)
    labels = job_labels(request, run_id=identity.run_id, workflow=identity.workflow)
    return JobPlan(
        name=name,
        namespace=namespace,
        labels={**settings.labels, **labels},
        # In full: a label's value may have been cut.
        annotations={
            "clrflow/run": request.run_name, "clrflow/run-id": identity.run_id, "clrflow/step": request.step, "clrflow/key": request.key,
            "clrflow/folder": request.folder,
        },
        owner=identity.owner,
        nodes=settings.nodes,
        processes_per_node=request.num_processes // settings.nodes,
        elastic=settings.elastic,
        max_restarts=settings.max_restarts,
        deadline_s=math.ceil(settings.deadline_s),
        ttl_s=settings.ttl_s,
        pod=pod_template(request, settings, job=name, labels=labels, zone=zone),
    )  # fmt: skip
