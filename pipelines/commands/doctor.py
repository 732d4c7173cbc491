"""`clrflow doctor`: is this machine fit to run the pipeline? One line a check, and a remedy where it isn't."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines import console


def command(
    workspace: Annotated[str, typer.Option(help="Folder whose disk is measured.", metavar="URI")] = ".",
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check Python, packages, one FBGEMM operator, threads, memory and disk; needs no network.

    Example: clrflow doctor
    """
    from pipelines.doctor import check_machine

    checks = check_machine(workspace)
    if as_json:
        console.print_json([{"name": c.name, "state": c.state, "found": c.found, "remedy": c.remedy} for c in checks])
    else:
        for check in checks:
            console.line(f"{check.state:8} {check.name:22} {check.found}" + (f"\n{'':32}→ {check.remedy}" if check.remedy else ""))
    missing = [check.name for check in checks if check.state == "missing"]
    if missing:
        if not as_json:
            console.error(f"{len(missing)} needed thing(s) missing: {', '.join(missing)}.")
        raise typer.Exit(1)
