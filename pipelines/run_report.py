"""One page for a whole run: what came out, how long it took, and every step's own report inside; a single file without scripts."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from clrflow import storage
from clrflow.errors import BadInput
from clrflow.formatting import show
from clrflow.manifest import Manifest
from clrflow.progress import duration
from clrflow.steps import STEPS, Run

FILE_NAME = "report.html"
TIMES_NAME = "times.json"
KEY_FIGURES = 8
"""Metrics that a step's heading shows; all of them are in its own report."""


def run_names(workspace: str = "") -> list[str]:
    """Names of the runs of a workspace, newest first (by the time at which each was written down)."""
    runs = storage.join(storage.absolute(workspace or "clrflow-workspace"), "runs")
    fs, path = storage.filesystem(runs)
    if not fs.exists(path):
        raise BadInput(f"{runs.removesuffix('/runs')} holds no runs; name the workspace with --workspace, or start one with `clrflow run`.")
    found = [
        (_written(fs, f"{folder.rstrip('/')}/run.json"), storage.name_of(folder))
        for folder in fs.ls(path, detail=False)
        if fs.exists(f"{folder.rstrip('/')}/run.json")
    ]
    return [name for _, name in sorted(found, reverse=True)]


def _written(fs: Any, path: str) -> str:
    return str(fs.modified(path).isoformat())


def find_run(run: str = "", workspace: str = "") -> Run:
    """A run by its URI, by its name in the workspace, or the workspace's newest."""
    base = storage.join(storage.absolute(workspace or "clrflow-workspace"), "runs")
    if not run:
        names = run_names(workspace)
        if not names:
            raise BadInput(f"{base} holds no finished run; start one with `clrflow run`.")
        run = names[0]
    uri = storage.absolute(run) if "/" in run else storage.join(base, run)
    if not storage.exists(storage.join(uri, "run.json")):
        raise BadInput(f"run {run!r}: {uri} holds no run.json. `clrflow report --list --workspace URI` names the runs of a workspace.")
    return Run.load(uri)


def manifests_of(run: Run) -> dict[str, Manifest]:
    """The finished steps of a run, in the DAG's order."""
    return {step: manifest for step in STEPS if (manifest := run.manifest_of(step)) is not None}


def write_report(run: Run, times: dict[str, float] | None = None) -> str:
    """Build the page of a run and return its URI; `times` are the seconds by step as the run's caller saw them.

    They are kept beside the page, so that building it again later still shows them.
    """
    times_uri = storage.join(run.uri, TIMES_NAME)
    if times is not None:
        storage.write_json(times_uri, times)
    elif storage.exists(times_uri):
        times = storage.read_json(times_uri)
    uri = storage.join(run.uri, FILE_NAME)
    storage.write_text(uri, page(run, manifests_of(run), times or {}))
    return uri


def page(run: Run, manifests: dict[str, Manifest], times: dict[str, float]) -> str:
    """The HTML itself."""
    import jinja2

    facts = {step: manifest.facts for step, manifest in manifests.items()}
    failure_uri = storage.join(run.uri, "failure.json")
    steps = []
    for name in STEPS:
        manifest = manifests.get(name)
        reference = storage.read_json(storage.join(run.uri, f"{name}.json")) if manifest else {}
        steps.append(
            {
                "name": name,
                "manifest": manifest,
                "state": "not finished" if manifest is None else "found" if reference.get("reused") else "done",
                "work": duration(manifest.duration_s) if manifest else "–",
                "seen": duration(times[name]) if name in times else "–",
                "memory": f"{manifest.peak_memory_bytes / 1e6:,.0f} MB" if manifest else "–",
                "written": f"{sum(output.num_bytes for output in manifest.outputs.values()) / 1e6:,.1f} MB" if manifest else "–",
                "figures": [(key, _figure(value)) for key, value in list(manifest.metrics.items())[:KEY_FIGURES]] if manifest else [],
                "report": storage.read_bytes(manifest.report_uri).decode() if manifest else "",
            }
        )
    table = facts.get("evaluate", {}).get("table")
    source = files("pipelines").joinpath("run_report.html.j2").read_text()
    template = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
    return template.render(
        run=run,
        steps=steps,
        work=duration(sum(manifest.duration_s for manifest in manifests.values())),
        seen=duration(sum(times.values())) if times else "",
        columns=table["columns"] if table else [],
        rows=[[show(cell) for cell in row] for row in table["rows"]] if table else [],
        gate=facts.get("gate", {}),
        publish=facts.get("publish", {}),
        failure=storage.read_json(failure_uri) if storage.exists(failure_uri) else None,
    )


def _figure(value: float) -> str:
    """Metrics are floats for Kubeflow; a count is shown as one."""
    return show(int(value)) if float(value).is_integer() else show(value)
