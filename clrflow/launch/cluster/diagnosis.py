"""Why a job failed, in one message: which pod, what the kubelet says of its container, what the program said last, and what to do.

Ranks fail in a chain: one breaks and the others lose their peer. So the pods are ordered by when they ended, and among those that ended
together the one that gives a reason of its own comes first.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from clrflow.errors import BadInput, ClrflowError
from clrflow.launch.cluster.api import Cluster
from clrflow.launch.cluster.logs import tail
from clrflow.launch.torchrun import BAD_INPUT, PREEMPTED, Output

NUM_LOGS = 4
"""Pods whose logs are read: those that ended first."""
NEVER_RAN = ("StartError", "ContainerCannotRun", "CreateContainerError")
"""The kubelet's reasons for a container whose program never began; its message says why."""
LOST_PEER = ("Connection closed by peer", "Connection reset", "connection was lost", "Socket Timeout", "Timed out waiting", "Broken pipe")


class JobFailed(ClrflowError):
    """The job ended without its output; says whether the same job may be tried again."""

    def __init__(self, message: str, *, restartable: bool):
        super().__init__(message)
        self.restartable = restartable


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
    """How a pod's container ended."""

    pod: str
    at: str
    """The cluster's time stamp; "" where the pod ended without its container (an eviction)."""
    code: int | None
    reason: str
    message: str
    output: Output

    @property
    def blame(self) -> tuple[bool, str]:
        """Sorts the pod to blame first."""
        lost_peer = any(sign in line for line in self.output.last for sign in LOST_PEER)
        own = bool(self.output.error) or self.reason not in ("", "Error") or (self.code or 0) > 128
        return (not own and (lost_peer or not self.output.last), self.at)


def container_status(pod: dict[str, Any], container: str) -> dict[str, Any]:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return next((status for status in statuses if status["name"] == container), {})


def failed_pods(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [pod for pod in pods if pod.get("status", {}).get("phase") == "Failed"]


def explain(cluster: Cluster, container: str, pods: list[dict[str, Any]], *, what: str, job: str, said: Output) -> ClrflowError:
    """The error to raise for a job that failed; reads the failed pods' logs, so it must be asked before they are deleted.

    `said` is what rank 0's log held, for when its pod is gone already.
    """
    ends = sorted((_end(pod, container) for pod in failed_pods(pods)), key=lambda end: end.at)[:NUM_LOGS]
    ends = [dataclasses.replace(end, output=_said(cluster, end.pod, container)) for end in ends]
    if not ends:
        return _without_pods(what, job, said)
    bad = next((end for end in ends if end.output.error_code == BAD_INPUT or (end.code == BAD_INPUT and end.output.error)), None)
    if bad:
        return BadInput(bad.output.error)
    end = min(ends, key=lambda end: end.blame)
    told = f"exit code {end.code}" if end.code is not None else "no exit code"
    parts = [f"{what} failed: pod {end.pod} of job {job} ended with {told} ({end.reason or 'Error'})"]
    if end.output.error:
        parts.append(f": {end.output.error}")
    elif end.message and (end.code is None or end.reason in NEVER_RAN):
        parts.append(f": {end.message}")
    if end.output.last:
        parts.append("; the last it said:\n  " + "\n  ".join(end.output.last))
    parts.append(f"\n{_remedy(end)}")
    return JobFailed("".join(parts), restartable=end.code != BAD_INPUT and end.reason not in ("DeadlineExceeded", *NEVER_RAN))


def _end(pod: dict[str, Any], container: str) -> End:
    status = pod.get("status", {})
    ended = container_status(pod, container).get("state", {}).get("terminated") or {}
    if not ended:
        ended = next(
            (
                state["state"]["terminated"]
                for state in status.get("initContainerStatuses") or ()
                if (state["state"].get("terminated") or {}).get("exitCode")
            ),
            {},
        )
    # The pod's own reason (Evicted, DeadlineExceeded, NodeLost) says more than its container's `Error`.
    reason = status.get("reason") or ended.get("reason", "")
    return End(
        pod=pod["metadata"]["name"], at=ended.get("finishedAt") or "", code=ended.get("exitCode"), reason=reason,
        message=status.get("message") or ended.get("message") or "", output=Output(),
    )  # fmt: skip


def _said(cluster: Cluster, pod: str, container: str) -> Output:
    output = Output()
    for line in tail(cluster, pod, container):
        output.read(line)
    return output


def _without_pods(what: str, job: str, said: Output) -> ClrflowError:
    if said.error_code == BAD_INPUT:
        return BadInput(said.error)
    lines = [said.error] if said.error else list(said.last)
    shown = "; the last its first pod said:\n  " + "\n  ".join(lines) if lines else ""
    return JobFailed(f"{what} failed: job {job} ended and its pods are gone{shown}", restartable=True)


def _remedy(end: End) -> str:
    if end.reason == "OOMKilled" or (end.code == 137 and end.reason in ("", "Error")):
        return "Its memory was used up or it was killed: raise launch.resources.memory, or lower training.batch_size."
    if end.reason == "DeadlineExceeded":
        return "It ran into launch.deadline_s; raise it. Run again: training goes on from its last checkpoint."
    if end.reason in NEVER_RAN:
        return "Check launch.image (it must hold `python` with clrflow) and launch.volumes."
    if end.reason == "Evicted":
        return "The node ran out of what the message names; raise launch.resources so that the pod is kept, or free the node."
    if end.code == PREEMPTED:
        return "It was told to stop and saved. Run again: training goes on from there."
    return "Mend what the lines say and run the same command again: training goes on from its last checkpoint."
