"""Follows a run to its end: a line when a step begins or ends, and at the end what a person needs, the failing step and its reason."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from clrflow import storage
from clrflow.errors import ClrflowError
from clrflow.progress import duration
from clrflow.steps import STEPS
from pipelines.kubeflow.client import Client

DONE = ("SUCCEEDED", "SKIPPED", "FAILED", "CANCELED")
PATIENCE_S = 600.0
"""How long the server may be away while a run is followed; the run itself doesn't need it."""
_NAMES = ("configure", *STEPS, "clean_up")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """A run's end as the server tells it."""

    state: str
    seconds: float
    steps: dict[str, str]
    """State by step, of the steps that were begun."""


class RunFailed(ClrflowError):
    """The run ended other than well."""


def follow(client: Client, run_id: str, *, timeout_s: float = 0, every_s: float = 3.0, tell: Callable[[str], None]) -> Ended:
    """Wait for the run's end and return it, whatever it is. Raises ClrflowError after `timeout_s` seconds (0: none); the run goes on then."""
    started = time.monotonic()
    said: dict[str, str] = {}
    state = ""
    while True:
        run = client.call("GET", f"/runs/{run_id}", patience_s=PATIENCE_S)
        steps = states_of(run)
        for name, (step_state, seconds) in steps.items():
            if step_state != said.get(name):
                said[name] = step_state
                if line := _line(name, step_state, seconds):
                    tell(line)
        if run.get("state") != state:
            state = run.get("state") or ""
            if state not in ("RUNNING", ""):
                tell(f"run is {state.lower().replace('_', ' ')}")
        if state in DONE:
            return Ended(state=state, seconds=time.monotonic() - started, steps={name: found for name, (found, _) in steps.items()})
        if timeout_s and time.monotonic() - started > timeout_s:
            busy = [name for name, (found, _) in steps.items() if found == "RUNNING"]
            raise ClrflowError(
                f"run {run_id} did not end within {timeout_s:.0f} s (now: {', '.join(busy) or state.lower() or 'no step begun'}). It goes on; "
                f"{how_to_end(client, run_id)}"
            )
        time.sleep(every_s)


def states_of(run: dict[str, Any]) -> dict[str, tuple[str, float]]:
    """State and seconds of the pipeline's own steps, in the DAG's order; drivers and groups of Kubeflow's are left out."""
    from pipelines.conditional_retrieval import DISPLAY_NAMES

    by_name = {name.replace("_", "-"): name for name in _NAMES} | {shown: name for name, shown in DISPLAY_NAMES.items()}
    found: dict[str, tuple[str, float]] = {}
    for task in (run.get("run_details") or {}).get("task_details") or []:
        name = by_name.get(task.get("display_name") or "")
        if name and task.get("state") not in (None, "", "RUNTIME_STATE_UNSPECIFIED"):
            found[name] = (task["state"], _seconds(task.get("start_time"), task.get("end_time")))
    return {name: found[name] for name in _NAMES if name in found}


def failure_of(client: Client, run_id: str, ended: Ended, workspace: str, run_name: str) -> RunFailed:
    """Why the run failed: in the step's own words where its workspace can be read from here, else where to look."""
    failed = [name for name, state in ended.steps.items() if state == "FAILED"]
    what = "was canceled" if ended.state == "CANCELED" else "failed"
    where = f"Its log: {client.link('runs', 'details', run_id)}"
    failure: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # a bucket that this machine may not read, a volume of the cluster
        failure = storage.read_json(storage.join(workspace, "runs", run_name, "failure.json"))
    if failure and ended.state != "CANCELED":
        return RunFailed(f"run {run_name} {what}: step {failure['step']}: {failure['message']}\n{where}")
    message = ""
    run = client.call("GET", f"/runs/{run_id}", patience_s=PATIENCE_S)
    for task in (run.get("run_details") or {}).get("task_details") or []:
        if task.get("state") == "FAILED" and (said := (task.get("error") or {}).get("message")):
            message = str(said)[:1000]
            break
    message = message or str((run.get("error") or {}).get("message") or "")[:1000]
    step = f": step {failed[0]}" if failed else ""
    return RunFailed(f"run {run_name} {what}{step}{f': {message}' if message else ''}\n{where}")


def how_to_end(client: Client, run_id: str) -> str:
    return (
        f"end it in the UI ({client.link('runs', 'details', run_id)}, Terminate) or with "
        f"`curl -X POST {client.endpoint}/apis/v2beta1/runs/{run_id}:terminate`."
    )


def _line(name: str, state: str, seconds: float) -> str:
    took = f" ({duration(seconds)})" if seconds else ""
    return {
        "RUNNING": f"▸ {name}",
        "SUCCEEDED": f"✓ {name} finished{took}",
        "SKIPPED": f"- {name} skipped",
        "FAILED": f"✗ {name} failed{took}",
        "CANCELED": f"✗ {name} canceled{took}",
    }.get(state, "")


def _seconds(start: str | None, end: str | None) -> float:
    import datetime

    if not start or not end:
        return 0.0
    try:
        times = [datetime.datetime.fromisoformat(text.replace("Z", "+00:00")) for text in (start, end)]
    except ValueError:
        return 0.0
    return max(0.0, (times[1] - times[0]).total_seconds())
