"""`clrflow doctor`: is this machine, or with --cluster that cluster, fit to run the pipeline? One line a check, and a remedy where it isn't."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines import console

if TYPE_CHECKING:
    from pipelines.doctor import Check


def command(
    workspace: Annotated[
        str,
        typer.Option(help="Folder whose disk is measured; with --cluster the place of all results, which pods must reach.", metavar="URI"),
    ] = ".",
    cluster: Annotated[bool, typer.Option("--cluster", help="Check the cluster of the kubeconfig (or of this pod) instead.")] = False,
    preset: Annotated[str, typer.Option(help="With --cluster: settings to start from. Default: small.")] = "",
    config: Annotated[str, typer.Option(help="With --cluster: YAML file of settings, instead of a preset.", metavar="FILE")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="With --cluster: one setting as part.field=value; may be given again.", metavar="K=V")
    ] = None,
    pull: Annotated[
        bool, typer.Option("--pull", help="With --cluster: run a small pod that pulls launch.image and writes to the workspace.")
    ] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", help="With --pull: seconds to wait for that pod.", min=1)] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check Python, packages, one FBGEMM operator, threads, memory and disk; needs no network.

    With --cluster: API server, CRDs and their versions, rights, claims, quotas, nodes and their devices against the settings, storage, image.

    Example: clrflow doctor --cluster --config cluster.yaml --workspace s3://bucket/clrflow --pull
    """
    from clrflow.errors import ConfigError

    cluster_only = {"--preset": preset, "--config": config, "--set": set_, "--pull": pull}
    if not cluster and (given := [name for name, value in cluster_only.items() if value]):
        raise ConfigError(f"{', '.join(given)} has no effect on a check of this machine; add --cluster.")
    checks = _of_cluster(preset, config, set_ or [], workspace, pull, timeout_s) if cluster else _of_machine(workspace)
    seen = []
    for check in checks:
        seen.append(check)
        if not as_json:
            found = check.found.replace("\n", f"\n{'':32}")
            console.line(f"{check.state:8} {check.name:22} {found}" + (f"\n{'':32}→ {check.remedy}" if check.remedy else ""))
    if as_json:
        console.print_json([{"name": c.name, "state": c.state, "found": c.found, "remedy": c.remedy} for c in seen])
    missing = list(dict.fromkeys(check.name for check in seen if check.state == "missing"))
    if missing:
        if not as_json:
            console.error(f"{len(missing)} needed thing(s) missing: {', '.join(missing)}.")
        raise typer.Exit(1)


def _of_machine(workspace: str) -> Iterable[Check]:
    from pipelines.doctor import check_machine

    return check_machine(workspace)


def _of_cluster(preset: str, config: str, overrides: list[str], workspace: str, pull: bool, timeout_s: float) -> Iterable[Check]:
    import importlib.util

    from clrflow import storage
    from clrflow.config import load_config
    from clrflow.errors import BadInput
    from pipelines.cluster_doctor import check_cluster

    if importlib.util.find_spec("kubernetes") is None:
        raise BadInput("doctor --cluster: the package `kubernetes` isn't installed here; pip install 'clrflow[pipelines]'.")
    settings = load_config(preset if preset or config else "small", config, overrides).launch
    if settings.launcher == "local":
        # Asking for the cluster is asking about a job on it; the other settings of launch may be the defaults.
        settings = settings.model_copy(update={"launcher": "pytorchjob"})
    return check_cluster(settings, storage.absolute(workspace), pull=pull, timeout_s=timeout_s)
