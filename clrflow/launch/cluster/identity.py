"""Which run of which workflow this process belongs to: makes the job's name the same for a retry and ties the job to the Workflow's life."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clrflow.progress import say

if TYPE_CHECKING:
    from clrflow.launch.cluster.api import Cluster

RUN_ID_VARIABLE, WORKFLOW_VARIABLE = "CLRFLOW_KFP_RUN_ID", "CLRFLOW_KFP_WORKFLOW"
"""Set on each KFP step by field path, from the labels that Kubeflow Pipelines gives its pods."""
WORKFLOW_GROUP, WORKFLOW_VERSION, WORKFLOW_PLURAL = "argoproj.io", "v1alpha1", "workflows"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """All "" outside Kubeflow Pipelines."""

    run_id: str = ""
    workflow: str = ""
    """Name of the Argo Workflow, in the namespace of the job."""
    workflow_uid: str = ""
    """"" also where the Workflow can't be read: the job then has no owner, and the other nets hold it."""

    @classmethod
    def from_environment(cls, cluster: Cluster | None = None, environ: Mapping[str, str] = os.environ) -> Identity:
        """Read the step's variables; with a cluster also the Workflow's uid, once."""
        run_id, workflow = environ.get(RUN_ID_VARIABLE, ""), environ.get(WORKFLOW_VARIABLE, "")
        uid = _uid_of(cluster, workflow) if cluster is not None and workflow else ""
        return cls(run_id=run_id, workflow=workflow, workflow_uid=uid)

    @property
    def owner(self) -> dict[str, Any] | None:
        """Owner reference by which deleting the run deletes its job.

        It doesn't block the owner's deletion: that would need rights on the Workflow's finalizers.
        """
        if not self.workflow_uid:
            return None
        return {
            "apiVersion": f"{WORKFLOW_GROUP}/{WORKFLOW_VERSION}", "kind": "Workflow", "name": self.workflow, "uid": self.workflow_uid,
            "controller": False, "blockOwnerDeletion": False,
        }  # fmt: skip


def _uid_of(cluster: Cluster, workflow: str) -> str:
    from clrflow.launch.cluster.api import ApiError

    try:
        found = cluster.call("GET", cluster.custom(WORKFLOW_GROUP, WORKFLOW_VERSION, WORKFLOW_PLURAL, workflow))
    except ApiError as error:
        say(
            f"the job gets no owner: Workflow {workflow} in namespace {cluster.namespace} can't be read ({error.status} {error.reason}); "
            "deleting the run won't delete the job, but its lease and deadline end it."
        )
        return ""
    return str(found["metadata"]["uid"])
