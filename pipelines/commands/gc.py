"""`clrflow gc`: what a workspace may lose, listed with sizes; removed when told so."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines import console


def command(
    workspace: Annotated[str, typer.Argument(help="Workspace to look through.", metavar="WORKSPACE")],
    keep_runs: Annotated[int, typer.Option(help="The newest runs that are kept, with all their results.", min=0)] = 10,
    keep_days: Annotated[float, typer.Option(help="Younger runs are kept, however many they are.", min=0)] = 30,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Also the finished jobs that runs left on the cluster (by the kubeconfig).")
    ] = False,
    namespace: Annotated[str, typer.Option(help="Namespace of the jobs, with --cluster. Default: the kubeconfig's.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Remove it. Without this nothing is removed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List (and with --yes remove) results that no kept run needs, checkpoints that nothing starts from, and old runs.

    What the published versions were trained by stays, and so does what a running step holds; unfinished runs stay for a week.

    Example: clrflow gc my/workspace --keep-runs 5 --keep-days 7 --yes
    """
    from clrflow import storage
    from clrflow.retention import plan, remove

    workspace = storage.absolute(workspace)
    planned = plan(workspace, keep_runs=keep_runs, keep_days=keep_days)
    jobs = _finished_jobs(namespace, yes) if cluster else []
    freed = remove(planned) if yes else 0
    if as_json:
        console.print_json(
            {
                "workspace": workspace, "removed": yes, "bytes": freed if yes else planned.num_bytes, "kept_runs": planned.kept_runs,
                "held": planned.held, "jobs": jobs,
                "leftovers": [{"kind": found.kind, "uri": found.uri, "why": found.why, "bytes": found.num_bytes} for found in planned.remove],
            }
        )  # fmt: skip
        return
    rows = [[found.kind, f"{found.num_bytes / 1e6:,.1f}", found.uri.removeprefix(f"{workspace}/"), found.why] for found in planned.remove]
    if rows:
        console.print_table(["", "MB", "what", "why"], rows)
    for folder in planned.held:
        console.line(f"held by a running step: {folder.removeprefix(f'{workspace}/')}")
    for job in jobs:
        console.line(f"finished job: {job}")
    what = f"{len(rows)} thing(s), {planned.num_bytes / 1e6:,.1f} MB" + (f", {len(jobs)} job(s)" if cluster else "")
    console.line(f"kept: {len(planned.kept_runs)} run(s) with their results")
    console.line(f"removed: {what}" if yes else f"would remove: {what}; give --yes to do it")


def _finished_jobs(namespace: str, yes: bool) -> list[str]:
    from clrflow.launch.cluster.api import Cluster
    from clrflow.launch.cluster.cleanup import finished_jobs

    return list(finished_jobs(Cluster.connect(namespace), delete=yes))
