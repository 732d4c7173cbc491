"""Recurring runs: one of a name, replaced in an order in which never two of them fire."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from clrflow.errors import BadInput, ClrflowError
from pipelines.kubeflow.client import Client
from pipelines.kubeflow.parameters import Chosen
from pipelines.kubeflow.upload import Uploaded, compiled_bytes, experiment_id, upload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheduled:
    """A recurring run on the server."""

    recurring_run_id: str
    name: str
    cron: str
    replaced: tuple[str, ...]
    """Ids of the recurring runs of this name that were there before."""
    uploaded: Uploaded
    link: str


def schedule(
    client: Client, chosen: Chosen, *, name: str, cron: str, pipeline: str, experiment: str, image: str = "", service_account: str = ""
) -> Scheduled:
    """Make the recurring run of that name be this one.

    The new one is made disabled, the old ones are disabled, the new one is enabled, the old ones are deleted. So at no moment two of them fire;
    whatever breaks in between leaves the old one, or at worst (said, and mended by the same command again) none. A run that an old one started
    goes on; the new one's first run finds its lock taken, should it begin meanwhile.
    """
    client.healthy()
    uploaded = upload(client, compiled_bytes(image, chosen.config.launch), pipeline)
    old = [recurring["recurring_run_id"] for recurring in recurring_runs(client) if recurring.get("display_name") == name]
    experiment_of_runs = experiment_id(client, experiment)
    body: dict[str, Any] = {
        "display_name": name,
        "description": f"clrflow {uploaded.version}",
        "experiment_id": experiment_of_runs,
        # Kubeflow needs both ids: with the pipeline alone it would run whatever version is newest then.
        "pipeline_version_reference": {"pipeline_id": uploaded.pipeline_id, "pipeline_version_id": uploaded.version_id},
        "runtime_config": {"parameters": chosen.parameters},
        "trigger": {"cron_schedule": {"cron": cron}},
        "max_concurrency": "1",
        "no_catchup": True,
        "mode": "DISABLE",
    }
    if service_account:
        body["service_account"] = service_account

    def find() -> dict[str, Any] | None:
        return next((r for r in recurring_runs(client) if r.get("display_name") == name and r["recurring_run_id"] not in old), None)

    new = str(client.create("/recurringruns", body, find)["recurring_run_id"])
    try:
        for recurring_run_id in old:
            _switch(client, recurring_run_id, "disable")
        _switch(client, new, "enable")
    except ClrflowError:
        with contextlib.suppress(ClrflowError):
            _delete(client, new)
            for recurring_run_id in old:
                _switch(client, recurring_run_id, "enable")
        raise
    for recurring_run_id in old:
        _delete(client, recurring_run_id)
    return Scheduled(
        recurring_run_id=new, name=name, cron=cron, replaced=tuple(old), uploaded=uploaded, link=client.link("recurringrun", "details", new)
    )


def recurring_runs(client: Client) -> list[dict[str, Any]]:
    """All recurring runs that this user sees (of the namespace, where the installation has several)."""
    return [*client.listed("/recurringruns", "recurring_runs", {"namespace": client.namespace})]


def unschedule(client: Client, name: str) -> list[str]:
    """Delete the recurring runs of that name and return their ids; raises BadInput where there is none. Runs at work go on."""
    there = recurring_runs(client)
    found = [recurring["recurring_run_id"] for recurring in there if recurring.get("display_name") == name]
    if not found:
        names = sorted({str(recurring.get("display_name")) for recurring in there})
        raise BadInput(f"there is no recurring run {name!r}; there are {', '.join(names) or 'none'}.")
    for recurring_run_id in found:
        _switch(client, recurring_run_id, "disable")
        _delete(client, recurring_run_id)
    return found


def _switch(client: Client, recurring_run_id: str, verb: str) -> None:
    client.call("POST", f"/recurringruns/{recurring_run_id}:{verb}")


def _delete(client: Client, recurring_run_id: str) -> None:
    client.call("DELETE", f"/recurringruns/{recurring_run_id}")
