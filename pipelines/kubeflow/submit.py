"""One submission: upload what isn't there yet, start a run under its name, say where it can be watched."""

from __future__ import annotations

import dataclasses
from typing import Any

from pipelines.kubeflow.client import Client
from pipelines.kubeflow.parameters import Chosen
from pipelines.kubeflow.upload import Uploaded, compiled_bytes, experiment_id, named, upload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submitted:
    """A run on the server."""

    run_id: str
    run_name: str
    experiment_id: str
    uploaded: Uploaded
    link: str


def submit(
    client: Client, chosen: Chosen, *, run_name: str, pipeline: str, experiment: str, image: str = "", service_account: str = ""
) -> Submitted:
    """Start a run of the pipeline with these parameters; the name is unique, so a lost answer can't start it twice."""
    client.healthy()
    uploaded = upload(client, compiled_bytes(image, chosen.config.launch), pipeline)
    experiment_of_run = experiment_id(client, experiment)
    body: dict[str, Any] = {
        "display_name": run_name,
        "experiment_id": experiment_of_run,
        "pipeline_version_reference": {"pipeline_id": uploaded.pipeline_id, "pipeline_version_id": uploaded.version_id},
        "runtime_config": {"parameters": chosen.parameters},
    }
    if service_account:
        body["service_account"] = service_account

    def find() -> dict[str, Any] | None:
        query = {"experiment_id": experiment_of_run, "filter": named(run_name)}
        return next((run for run in client.listed("/runs", "runs", query) if run.get("display_name") == run_name), None)

    run = client.create("/runs", body, find)
    return Submitted(
        run_id=run["run_id"], run_name=run_name, experiment_id=experiment_of_run, uploaded=uploaded,
        link=client.link("runs", "details", run["run_id"]),
    )  # fmt: skip
