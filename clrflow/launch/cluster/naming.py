"""Names and labels of a run's objects: the same for a retry, others for another run, and always ones that Kubernetes takes."""

from __future__ import annotations

import hashlib
import re

from clrflow.launch.request import JobRequest

MAX_NAME = 50
"""Operators append `-worker-123` and more to a job's name to make names of pods and Services, which end at 63."""
_HASH_LENGTH = 12

APP_LABEL, RUN_LABEL, RUN_ID_LABEL = "app.kubernetes.io/name", "clrflow/run", "clrflow/run-id"
STEP_LABEL, KEY_LABEL, WORKFLOW_LABEL = "clrflow/step", "clrflow/key", "clrflow/workflow"
JOB_LABEL = "clrflow/job"
"""On pods: the name of their job, for affinity among them whatever labels the operator gives."""


def job_name(request: JobRequest, *, namespace: str, run_id: str = "") -> str:
    """A DNS-1035 label of at most 50 characters from the step, the run and a hash of what makes the job this one.

    The hash covers the whole of namespace, run id (outside Kubeflow Pipelines the run's name), step and key, so cutting a long name short loses
    nothing that tells two jobs apart.
    """
    identity = "\n".join((namespace, run_id or request.run_name, request.step, request.key))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:_HASH_LENGTH]
    slug = re.sub(r"[^a-z0-9]+", "-", f"{request.step}-{request.run_name}".lower()).strip("-")
    slug = re.sub(r"^[^a-z]+", "", slug)[: MAX_NAME - _HASH_LENGTH - 1].rstrip("-") or "job"
    return f"{slug}-{digest}"


def label_value(text: str) -> str:
    """The text as a label's value; one that Kubernetes wouldn't take is cleaned, cut and told apart by a hash."""
    if len(text) <= 63 and re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?", text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[: 62 - _HASH_LENGTH].strip("._-")
    return f"{cleaned}-{digest}" if cleaned else digest


def run_labels(*, run_name: str, run_id: str = "", workflow: str = "") -> dict[str, str]:
    """What all objects of a run have in common; selects them for the exit handler and `clrflow gc`."""
    labels = {APP_LABEL: "clrflow", RUN_LABEL: label_value(run_name)}
    if run_id:
        labels[RUN_ID_LABEL] = label_value(run_id)
    if workflow:
        labels[WORKFLOW_LABEL] = label_value(workflow)
    return labels


def job_labels(request: JobRequest, *, run_id: str = "", workflow: str = "") -> dict[str, str]:
    return {
        **run_labels(run_name=request.run_name, run_id=run_id, workflow=workflow),
        STEP_LABEL: label_value(request.step),
        KEY_LABEL: label_value(request.key),
    }
