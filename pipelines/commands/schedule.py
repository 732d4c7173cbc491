"""`clrflow schedule`: retrain by the clock on Kubeflow Pipelines, one recurring run of a name, replaced and never doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipelines import console
from pipelines.commands import options

if TYPE_CHECKING:
    from pipelines.kubeflow.client import Client


def command(
    cron: Annotated[
        str, typer.Option(help="When: second minute hour day-of-month month day-of-week, in the server's time zone.", metavar="CRON")
    ] = "",
    endpoint: options.Endpoint = "",
    workspace: Annotated[
        str, typer.Option(help="Folder of all results, as the pods see it: s3://…, or a mounted path.", metavar="URI")
    ] = "",
    name: Annotated[
        str, typer.Option(help="Name of the schedule; scheduling it again replaces it. Also the name of its runs' lock.")
    ] = "daily",
    preset: options.Preset = "",
    config: options.Config = "",
    set_: options.Set = None,
    launcher: options.Launcher = "",
    experiment: options.Experiment = "clrflow",
    list_: Annotated[bool, typer.Option("--list", help="List the recurring runs instead.")] = False,
    delete: Annotated[str, typer.Option(help="Delete this schedule instead; a run at work goes on.", metavar="NAME")] = "",
    namespace: options.Namespace = "",
    token_file: options.TokenFile = "",
    ca: options.Authority = "",
    image: options.Image = "",
    pipeline: options.Pipeline = "conditional-retrieval",
    service_account: options.ServiceAccount = "",
    as_json: options.AsJson = False,
) -> None:
    """Run the pipeline by the clock: one run at a time, none made up for, each starting from the model that is published then.

    Example: clrflow schedule --cron "0 0 6 * * *" --endpoint http://localhost:8888 --config cluster.yaml --workspace s3://bucket/retrieval
    """
    from clrflow.errors import BadInput

    tell = console.to_stderr if as_json else console.line
    if list_ or delete:
        if cron or (list_ and delete):
            raise BadInput("--cron, --list and --delete exclude each other; give one of them.")
        client = options.client_of(endpoint, token_file, ca, namespace, tell)
        if list_:
            _list(client, as_json)
        else:
            _delete(client, delete, as_json)
        return
    from pipelines.kubeflow.cron import check_cron
    from pipelines.kubeflow.parameters import choose
    from pipelines.kubeflow.schedule import schedule

    if not cron:
        raise BadInput('--cron is missing: say when, e.g. --cron "0 0 6 * * *" for each day at six.')
    cron = check_cron(cron)
    chosen = choose(preset=preset, config=config, overrides=set_ or (), workspace=workspace, launcher=launcher, lock=check_name(name))
    client = options.client_of(endpoint, token_file, ca, namespace, tell)
    made = schedule(
        client, chosen, name=name, cron=cron, pipeline=pipeline, experiment=experiment, image=image, service_account=service_account
    )
    if as_json:
        console.print_json(
            {
                "name": name, "cron": cron, "recurring_run_id": made.recurring_run_id, "replaced": made.replaced, "link": made.link,
                "pipeline_id": made.uploaded.pipeline_id, "version": made.uploaded.version, "version_id": made.uploaded.version_id,
            }
        )  # fmt: skip
        return
    console.line(f"pipeline {pipeline}, version {made.uploaded.version} ({'uploaded' if made.uploaded.is_new else 'already there'})")
    console.line(f"schedule {name}: {cron}{f', replaces {len(made.replaced)} recurring run(s)' if made.replaced else ''}; {made.link}")


def check_name(name: str) -> str:
    """A schedule's name is also that of a file in the workspace, its lock."""
    from clrflow.configure import is_name
    from clrflow.errors import BadInput

    if not is_name(name):
        raise BadInput(f"--name {name!r}: letters, digits, '.', '_' and '-' only, 100 at most; choose another name.")
    return name


def _list(client: Client, as_json: bool) -> None:
    from pipelines.kubeflow.schedule import recurring_runs

    rows = [
        {
            "name": found.get("display_name"), "cron": ((found.get("trigger") or {}).get("cron_schedule") or {}).get("cron", ""),
            "status": found.get("status") or found.get("mode"), "made": found.get("created_at"), "recurring_run_id": found["recurring_run_id"],
        }
        for found in recurring_runs(client)
    ]  # fmt: skip
    if as_json:
        console.print_json(rows)
    elif rows:
        console.print_table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        console.line("no recurring runs")


def _delete(client: Client, name: str, as_json: bool) -> None:
    from pipelines.kubeflow.schedule import unschedule

    gone = unschedule(client, name)
    if as_json:
        console.print_json({"deleted": gone})
    else:
        console.line(f"schedule {name}: {len(gone)} recurring run(s) deleted; a run at work goes on")
