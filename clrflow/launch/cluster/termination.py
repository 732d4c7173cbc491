"""What happens to the job when the launcher is told to stop.

In Kubeflow Pipelines SIGTERM means one of two things. The run is being terminated: then nobody comes back, and the job must go at once. Or the
step's pod is drained from its node: then the step comes again by itself and adopts the job, which therefore stays. The Workflow tells them
apart: terminating sets its activeDeadlineSeconds to 0. The process has about a second, and its standard output may be gone, so the handler
prints nothing, uses a client made beforehand, and leaves by _exit.

Outside Kubeflow Pipelines nobody comes back: SIGTERM and Ctrl-C end the job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from clrflow.errors import ClrflowError
from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.identity import WORKFLOW_GROUP, WORKFLOW_PLURAL, WORKFLOW_VERSION, Identity

LOOK_TIMEOUT_S, DELETE_TIMEOUT_S = 0.4, 2.0
EXIT_CODE = 128 + signal.SIGTERM
DELETE_OPTIONS = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}


class Terminated(BaseException):
    """SIGTERM outside Kubeflow Pipelines; like KeyboardInterrupt it passes by everything that handles errors."""


@contextlib.contextmanager
def handled(cluster: Cluster, identity: Identity, job_path: str) -> Iterator[None]:
    """While a job is followed, SIGTERM does what the module says; outside the main thread no handler can be set, and the lease remains."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _in_workflow(cluster.another(), identity, job_path) if identity.workflow else _alone
    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _alone(signum: int, frame: object) -> None:
    raise Terminated("the launcher was told to stop (SIGTERM)")


def _in_workflow(cluster: Cluster, identity: Identity, job_path: str):  # type: ignore[no-untyped-def]
    workflow_path = cluster.custom(WORKFLOW_GROUP, WORKFLOW_VERSION, WORKFLOW_PLURAL, identity.workflow)
    # The first call opens the connection and looks the certificates up; in the handler there is no time for it.
    run_goes_on(cluster, workflow_path, timeout_s=10)

    def handler(signum: int, frame: object) -> None:
        try:
            if not run_goes_on(cluster, workflow_path):
                with contextlib.suppress(ClrflowError):
                    cluster.call("DELETE", job_path, body=DELETE_OPTIONS, timeout_s=DELETE_TIMEOUT_S, patience_s=0)
        finally:
            os._exit(EXIT_CODE)

    return handler


def run_goes_on(cluster: Cluster, workflow_path: str, timeout_s: float = LOOK_TIMEOUT_S) -> bool:
    """Whether the step will be tried again: the Workflow can be read and isn't being terminated."""
    try:
        workflow = cluster.call("GET", workflow_path, timeout_s=timeout_s, patience_s=0)
    except (ApiError, ClrflowError):
        return False
    spec, metadata = workflow.get("spec") or {}, workflow.get("metadata") or {}
    return spec.get("activeDeadlineSeconds") != 0 and spec.get("shutdown") in (None, "") and not metadata.get("deletionTimestamp")
