"""Names of runs, and how Kubeflow's id of a run leads to one; light to import, as the exit handler has seconds.

A run of a schedule can't be given a name beforehand. Its first step chooses one and leaves a pointer, `<workspace>/jobs/<id>.json`, by which
a retried first step and the exit handler find it.
"""

from __future__ import annotations

import datetime
import json
import secrets

from clrflow import storage


def new_run_name() -> str:
    """UTC time and a short id, so that names sort by time: `20261130-061500-1f3a`."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def name_for_job(workspace: str, job: str) -> str:
    """A new name for Kubeflow's run `job`, or the one that an earlier attempt of its first step chose."""
    name = new_run_name()
    if not storage.create_bytes(_pointer(workspace, job), json.dumps({"run": name}).encode()):
        name = run_of_job(workspace, job)
    return name


def run_of_job(workspace: str, job: str) -> str:
    """The name of the run that Kubeflow knows as `job`; empty when its first step didn't get so far."""
    uri = _pointer(storage.absolute(workspace), job)
    return str(storage.read_json(uri)["run"]) if storage.exists(uri) else ""


def _pointer(workspace: str, job: str) -> str:
    return storage.join(workspace, "jobs", f"{job}.json")
