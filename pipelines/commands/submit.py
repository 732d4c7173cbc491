"""`clrflow submit`: upload the pipeline where it isn't there yet, start a run on Kubeflow Pipelines and, if wished, follow it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines import console
from pipelines.commands import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.kubeflow.client import Client
    from pipelines.kubeflow.submit import Submitted


def command(
    endpoint: options.Endpoint = "",
    workspace: Annotated[
        str, typer.Option(help="Folder of all results, as the pods see it: s3://…, or a mounted path.", metavar="URI")
    ] = "",
    preset: options.Preset = "",
    config: options.Config = "",
    set_: options.Set = None,
    resume: Annotated[str, typer.Option(help="Take all settings from this earlier run of the workspace.", metavar="RUN")] = "",
    launcher: options.Launcher = "",
    run_name: Annotated[str, typer.Option(help="Name of the run. Default: the UTC time and a short id.")] = "",
    experiment: options.Experiment = "clrflow",
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run; exit code 0 if it succeeded, 1 if not.")] = False,
    timeout: Annotated[float, typer.Option(help="Longest wait with --wait, seconds; 0 means none.", min=0)] = 0,
    namespace: options.Namespace = "",
    token_file: options.TokenFile = "",
    ca: options.Authority = "",
    image: options.Image = "",
    pipeline: options.Pipeline = "conditional-retrieval",
    service_account: options.ServiceAccount = "",
    lock: Annotated[
        str,
        typer.Option(help="Name of a lock that one run of the workspace holds at a time, e.g. a schedule's; a second run does nothing."),
    ] = "",
    as_json: options.AsJson = False,
) -> None:
    """Start a run on Kubeflow Pipelines; the same source and settings are uploaded once.

    Example: clrflow submit --endpoint http://localhost:8888 --config cluster.yaml --workspace s3://bucket/retrieval --wait
    """
    from clrflow.run_names import new_run_name
    from pipelines.kubeflow.parameters import choose
    from pipelines.kubeflow.submit import submit

    tell: Callable[[str], None] = console.to_stderr if as_json else console.line
    run_name = run_name or new_run_name()
    chosen = choose(
        preset=preset, config=config, overrides=set_ or (), workspace=workspace, resume=resume, launcher=launcher, run_name=run_name, lock=lock
    )  # fmt: skip
    client = options.client_of(endpoint, token_file, ca, namespace, tell)
    submitted = submit(
        client, chosen, run_name=run_name, pipeline=pipeline, experiment=experiment, image=image, service_account=service_account
    )
    version = submitted.uploaded.version
    tell(f"pipeline {pipeline}, version {version} ({'uploaded' if submitted.uploaded.is_new else 'already there'})")
    tell(f"run {run_name} in experiment {experiment}: {submitted.link}")
    result: dict[str, Any] = {
        "run": run_name, "run_id": submitted.run_id, "experiment_id": submitted.experiment_id, "link": submitted.link,
        "pipeline_id": submitted.uploaded.pipeline_id, "version": version, "version_id": submitted.uploaded.version_id,
        "uploaded": submitted.uploaded.is_new,
    }  # fmt: skip
    if wait:
        result |= _follow(client, submitted, workspace, timeout, tell)
    if as_json:
        console.print_json(result)


def _follow(client: Client, submitted: Submitted, workspace: str, timeout: float, tell: Callable[[str], None]) -> dict[str, Any]:
    from clrflow.progress import duration
    from pipelines.kubeflow.follow import failure_of, follow, how_to_end

    try:
        ended = follow(client, submitted.run_id, timeout_s=timeout, tell=tell)
    except KeyboardInterrupt:
        console.error(f"interrupted. Run {submitted.run_name} goes on; {how_to_end(client, submitted.run_id)}")
        raise typer.Exit(130) from None
    if ended.state != "SUCCEEDED":
        raise failure_of(client, submitted.run_id, ended, workspace, submitted.run_name)
    tell(f"run {submitted.run_name} succeeded after {duration(ended.seconds)}; clrflow report {submitted.run_name} --workspace {workspace}")
    return dataclasses.asdict(ended)
