"""A job as a backend renders it: everything decided (name, placement, pods, limits), nothing yet in the words of one operator."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Protocol

Phase = Literal["pending", "running", "restarting", "succeeded", "failed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobPlan:
    """All that a PyTorchJob or a TrainJob is made of."""

    name: str
    """At most 50 characters, a DNS-1035 label."""
    namespace: str
    labels: dict[str, str]
    """Of the job and its pods; name the run, the step and clrflow, so that gc and the exit handler find them."""
    annotations: dict[str, str]
    owner: dict[str, Any] | None
    """Owner reference to the Workflow; None outside Kubeflow Pipelines."""
    nodes: int
    processes_per_node: int
    elastic: bool
    max_restarts: int
    deadline_s: int
    ttl_s: int
    pod: dict[str, Any]
    """metadata and spec of each pod (pods.py), with one container named `pytorch`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobState:
    """What a job's status says, in the launcher's words; it is a claim, not yet the truth (see launcher.py)."""

    phase: Phase
    reason: str = ""
    message: str = ""


class Backend(Protocol):
    """What differs between operators; everything else of the launcher is shared."""

    kind: str
    group: str
    version: str
    plural: str
    container: str
    """Name of the container whose log and exit code count, in each pod of the job."""

    def render(self, plan: JobPlan) -> dict[str, Any]:
        """The object to create."""
        ...

    def state(self, job: dict[str, Any]) -> JobState:
        """Read an object's status."""
        ...

    def pod_selector(self, name: str) -> str:
        """Label selector of the job's pods."""
        ...

    def rank(self, pod: dict[str, Any]) -> int:
        """Which node of the job a pod (as a plain object) is, 0 for the one whose log is streamed."""
        ...
