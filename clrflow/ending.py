"""The last thing that a run does, however it ended: its jobs are ended, its lock given back, and people told of a failure or a held model.

On Kubeflow this is the DAG's exit handler. It runs after a terminated run too, but has ten seconds to leave Pending then, so it needs a
small image, no particular node, and no heavy import: Kubernetes' client is imported only where the run's job was on a cluster.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from clrflow import lock as locks
from clrflow import storage
from clrflow.errors import ClrflowError
from clrflow.manifest import FILE_NAME
from clrflow.progress import say
from clrflow.run_names import run_of_job

State = Literal["succeeded", "failed", "terminated"]
# What Kubeflow Pipelines 2.17 and kfp.local say to an exit handler; after Terminate it says RUNNING.
_STATES: dict[str, State] = {"COMPLETE": "succeeded", "SUCCEEDED": "succeeded", "FAILED": "failed", "ERROR": "failed"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ended, as far as its workspace tells."""

    run: str
    """Empty when the run's first step ended before it was written down."""
    state: State
    reason: str
    report: str
    """URI of what says more: the gate's report, the failure, or the run's folder."""
    held: bool = False
    """The gate held the model back; the run succeeded all the same."""
    skipped: bool = False
    """Another run held the lock; this one did nothing."""


def end_run(
    *, workspace: str, run_name: str = "", job: str = "", lock: str = "", launcher: str = "", state: str, message: str = "",
    webhook_url: str = "",
) -> Ending:  # fmt: skip
    """Do all of it; `state` and `message` are Kubeflow's. Never raises for what others may mend: a good model must not turn red here."""
    workspace = storage.absolute(workspace)
    run_name = run_name or (run_of_job(workspace, job) if job else "")
    run_uri = storage.join(workspace, "runs", run_name) if run_name else ""
    raw: dict[str, Any] = storage.read_json(storage.join(run_uri, "run.json")) if run_uri and _is_there(run_uri, "run.json") else {}
    ending = _ending(workspace, run_name, run_uri, raw, _STATES.get(state, "terminated"), message)
    if not ending.skipped:
        _end_jobs(raw.get("config", {}).get("launch", {}), launcher, run_name)
        if lock and run_name and locks.release(workspace, lock, run_name):
            say(f"lock {lock}: given back")
    what = "held" if ending.held else ending.state
    say(f"run {run_name or job}: {what}" + (f": {ending.reason}" if ending.reason else ""))
    if webhook_url and not ending.skipped and what != "succeeded":
        from clrflow.webhook import notify

        notify(webhook_url, {"run": run_name or job, "state": what, "status": state, "reason": ending.reason, "report": ending.report})
    return ending


def _ending(workspace: str, run_name: str, run_uri: str, raw: dict[str, Any], state: State, message: str) -> Ending:
    if not raw:
        reason = message or "the first step ended before the run was written down; its log says why (wrong settings, most often)."
        return Ending(run="", state=state, reason="" if state == "succeeded" else reason, report=workspace)
    if raw.get("held_by"):
        reason = f"run {raw['held_by']} held the lock {raw.get('lock')}, so nothing was done."
        return Ending(run=run_name, state=state, reason=reason, report=run_uri, skipped=True)
    if state != "succeeded":
        failure = storage.read_json(storage.join(run_uri, "failure.json")) if _is_there(run_uri, "failure.json") else {}
        said = f"step {failure['step']} failed: {failure['message']}" if failure else ""
        reason = said or message or ("it was terminated." if state == "terminated" else "a step ended without saying why; see its log.")
        return Ending(run=run_name, state=state, reason=reason, report=storage.join(run_uri, "failure.json") if failure else run_uri)
    gate = _result(workspace, run_uri, "gate")
    held = gate.get("facts", {}).get("decision") == "hold"
    return Ending(
        run=run_name, state=state, held=held, reason=gate["facts"]["reason"] if held else "",
        report=storage.join(gate["uri"], "report.html") if gate else run_uri,
    )  # fmt: skip


def _result(workspace: str, run_uri: str, step: str) -> dict[str, Any]:
    """A finished step's manifest as it is written, {} when there is none; read without clrflow.steps, whose settings take time to import."""
    if not _is_there(run_uri, f"{step}.json"):
        return {}
    written = storage.read_json(storage.join(run_uri, f"{step}.json"))["uri"]
    here = storage.join(workspace, "steps", step, storage.name_of(written))
    uri = here if _is_there(here, FILE_NAME) else written
    return {**storage.read_json(storage.join(uri, FILE_NAME)), "uri": uri} if _is_there(uri, FILE_NAME) else {}


def _is_there(uri: str, name: str) -> bool:
    return storage.exists(storage.join(uri, name))


def _end_jobs(launch: dict[str, Any], launcher: str, run_name: str) -> None:
    """Delete what the run's launcher left on the cluster; the job's lease and owner end it too, should this not come through."""
    kind = launcher or launch.get("launcher", "local")
    if kind == "local" or not run_name:
        say("jobs: training ran in its own step, so there is no job to end" if run_name else "jobs: none was started")
        return
    try:
        from clrflow.launch.cluster.api import Cluster
        from clrflow.launch.cluster.cleanup import end_jobs

        ended = end_jobs(Cluster.connect(launch.get("namespace", "")), run_name=run_name)
    except (ClrflowError, ImportError) as error:
        say(f"jobs: could not be looked for ({error}); a job that is left ends by its lease, and with the run it is deleted by its owner")
        return
    say(f"jobs: ended {', '.join(ended)}" if ended else "jobs: none was left")
