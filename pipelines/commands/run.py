"""`clrflow run`: the whole pipeline on this machine, and at its end what came out of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines import console

if TYPE_CHECKING:
    from clrflow.steps import Run
    from pipelines.local_runner import LocalRun

DEMO_WORKSPACE = "demo/workspace"
WORKSPACE = "clrflow-workspace"


def command(
    preset: Annotated[str, typer.Option(help="Settings to start from: demo, small, production. Default: small.")] = "",
    config: Annotated[str, typer.Option(help="YAML file of settings, instead of a preset.", metavar="FILE")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="One setting as part.field=value; may be given again.", metavar="K=V")
    ] = None,
    workspace: Annotated[
        str, typer.Option(help=f"Folder of all results. Default: ./{WORKSPACE}; for the demo ./{DEMO_WORKSPACE}.", metavar="URI")
    ] = "",
    resume: Annotated[str, typer.Option(help="Take all settings from this earlier run of the workspace.", metavar="RUN")] = "",
    launcher: Annotated[
        str, typer.Option(help="Where training runs: local, pytorchjob or trainjob (by the kubeconfig). Default: as in the settings.")
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the run. Default: the UTC time and a short id.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, after the steps' own lines.")] = False,
) -> None:
    """Run the whole pipeline on this machine; finished steps of earlier runs are found and not done again.

    Example: clrflow run --preset small --set data.tables=my/tables --set training.epochs=3 --workspace my/workspace
    """
    from clrflow import storage
    from clrflow.config import is_inline
    from clrflow.configure import configure_run, join_overrides
    from clrflow.errors import ConfigError
    from clrflow.run_names import new_run_name
    from pipelines.local_runner import run_locally

    if preset and config:
        raise ConfigError(f"--preset {preset} and --config {config} were both given; give one, and use --set for differences.")
    overrides = join_overrides(set_ or ())
    preset = preset if preset or config or resume else "small"
    workspace = storage.absolute(workspace or (DEMO_WORKSPACE if preset == "demo" else WORKSPACE))
    if config and not is_inline(config) and storage.is_local(config):
        config = storage.absolute(config)
    name = name or new_run_name()
    arguments: dict[str, Any] = {
        "preset": preset, "config": config, "resume": resume, "workspace": workspace, "run_name": name, "overrides": overrides,
        "launcher": launcher,
    }  # fmt: skip
    # The first step checks the same settings; here they are checked before a process is started, and a contradiction costs a second.
    checked = configure_run(
        **{key: value for key, value in arguments.items() if key != "launcher"}, shortcuts={"launch.launcher": launcher}
    )
    console.line(f"run {checked.name} in {checked.workspace}")
    finished = run_locally(arguments, checked.uri)
    _conclude(checked, finished, as_json)


def _conclude(run: Run, finished: LocalRun, as_json: bool) -> None:
    from clrflow import storage
    from pipelines.run_report import write_report

    manifests = {step: manifest for step in finished.times if (manifest := run.manifest_of(step))}
    report = write_report(run, {step: round(seconds, 3) for step, seconds in finished.times.items()})
    facts = {step: manifest.facts for step, manifest in manifests.items()}
    decision = facts.get("gate", {})
    published = facts.get("publish", {})
    if as_json:
        result: dict[str, Any] = {
            "run": run.uri,
            "report": report,
            "times_s": finished.times,
            "reused": sorted(finished.reused),
            "metrics": {step: manifest.metrics for step, manifest in manifests.items()},
            "decision": decision,
            "published": published,
            "steps": {step: dataclasses.asdict(manifest)["uri"] for step, manifest in manifests.items()},
        }
        console.print_json(result)
        return
    table = facts.get("evaluate", {}).get("table")
    if table:
        console.line()
        console.print_table(table["columns"], table["rows"], highlight=0, title="On the held-out requests, the whole catalogue ranked")
    console.line()
    rows = [
        [step, "found" if step in finished.reused else "done", f"{seconds:.1f}", _megabytes(manifests.get(step))]
        for step, seconds in finished.times.items()
    ]
    rows.append(["all", "", f"{sum(finished.times.values()):.1f}", None])
    console.print_table(["step", "", "seconds", "peak MB"], rows, title="Time by step")
    console.line()
    if decision:
        console.line(f"gate      {decision.get('decision', '?')}: {decision.get('reason', '')}")
    if published.get("published"):
        state = "new" if published.get("changed") else "already published"
        console.line(f"published {published['published']} ({state}) in {storage.join(run.workspace, 'published')}")
    else:
        console.line("published nothing")
    console.line(f"report    {report}")


def _megabytes(manifest: Any) -> int | None:
    return round(manifest.peak_memory_bytes / 1e6) if manifest is not None else None
