"""`clrflow report`: one page for a whole run."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines import console


def command(
    run: Annotated[str, typer.Argument(help="Name or URI of a run; the newest of the workspace if left out.")] = "",
    workspace: Annotated[str, typer.Option(help="Workspace of the run, unless a URI is given.", metavar="URI")] = "",
    list_: Annotated[bool, typer.Option("--list", help="Name the runs of the workspace, newest first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the path and all metrics (or the names) as JSON.")] = False,
) -> None:
    """Build one page of all steps of a run (reports, times, key figures) and print its path.

    Example: clrflow report 20261130-061500-1f3a --workspace demo/workspace
    """
    from pipelines.run_report import find_run, manifests_of, run_names, write_report

    if list_:
        names = run_names(workspace)
        if as_json:
            console.print_json(names)
        else:
            for name in names:
                console.line(name)
        return
    found = find_run(run, workspace)
    path = write_report(found)
    if as_json:
        metrics = {step: manifest.metrics for step, manifest in manifests_of(found).items()}
        console.print_json({"run": found.uri, "report": path, "metrics": metrics})
    else:
        console.line(path)
