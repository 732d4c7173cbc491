"""Jobs that a run has left in the cluster: found by their labels, whatever operator they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.naming import APP_LABEL, run_labels
from clrflow.launch.cluster.plan import Backend
from clrflow.launch.cluster.pytorchjob import PyTorchJobBackend
from clrflow.launch.cluster.termination import DELETE_OPTIONS
from clrflow.launch.cluster.trainjob import TrainJobBackend
from clrflow.progress import say

FINISHED = ("succeeded", "failed")


def end_jobs(cluster: Cluster, *, run_name: str) -> list[str]:
    """Delete the unfinished jobs of a run; returns their names."""
    return [
        _delete(cluster, backend, job)
        for backend, job in _jobs(cluster, _selector(run_labels(run_name=run_name)))
        if backend.state(job).phase not in FINISHED
    ]


def finished_jobs(cluster: Cluster, *, delete: bool) -> list[str]:
    """Names of clrflow's finished jobs in the namespace, of all runs; with `delete` they and their pods' logs go."""
    found = [(backend, job) for backend, job in _jobs(cluster, f"{APP_LABEL}=clrflow") if backend.state(job).phase in FINISHED]
    return [_delete(cluster, backend, job) if delete else str(job["metadata"]["name"]) for backend, job in found]


def _jobs(cluster: Cluster, selector: str) -> Iterator[tuple[Backend, dict[str, Any]]]:
    backends: tuple[Backend, ...] = (PyTorchJobBackend(), TrainJobBackend())
    for backend in backends:
        try:
            listed = cluster.call("GET", cluster.custom(backend.group, backend.version, backend.plural), query={"labelSelector": selector})
        except ApiError as error:
            if error.status == 404:
                continue  # the cluster doesn't know the kind
            if error.status == 403:
                say(f"{backend.plural}.{backend.group} can't be listed here ({error.server_message}); jobs of this kind stay")
                continue
            raise
        for job in listed["items"]:
            yield backend, job


def _selector(labels: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())


def _delete(cluster: Cluster, backend: Backend, job: dict[str, Any]) -> str:
    name = str(job["metadata"]["name"])
    try:
        cluster.call("DELETE", cluster.custom(backend.group, backend.version, backend.plural, name), body=DELETE_OPTIONS)
    except ApiError as error:
        if error.status != 404:
            raise
    return name
