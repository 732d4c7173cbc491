"""Brings a compiled pipeline to the server once: the pipeline by its name, the version by its revision and content, the experiment by name."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from clrflow.errors import BadInput, ClrflowError
from clrflow.launch.settings import LaunchSettings
from pipelines.kubeflow.client import ApiError, Client
from pipelines.kubeflow.version import content_hash, version_name

_MARK = "content "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uploaded:
    """A version of the pipeline on the server."""

    pipeline_id: str
    version_id: str
    version: str
    is_new: bool


def upload(client: Client, compiled: bytes, pipeline: str) -> Uploaded:
    """The version on the server whose content is `compiled`; uploads it where it isn't there yet.

    Raises ClrflowError when a version of that name holds something else, which nobody but a person can have made.
    """
    pipeline_id = _pipeline(client, pipeline)
    name, mark = version_name(compiled), f"{_MARK}{content_hash(compiled)}"
    found = _version(client, pipeline_id, name)
    is_new = found is None
    if found is None:
        query = {"name": name, "display_name": name, "pipelineid": pipeline_id, "description": f"clrflow {name}, {mark}"}
        try:
            found = client.call("POST", "/pipelines/upload_version", query=query, upload=(f"{pipeline}.yaml", compiled))
        except ApiError as error:
            # Somebody else, or an earlier try of ours whose answer was lost, was quicker.
            found = _version(client, pipeline_id, name) if error.status == 409 or "already exist" in str(error) else None
            if found is None:
                raise
    said = found.get("description") or ""
    if _MARK in said and mark not in said:
        raise ClrflowError(
            f"version {name} of pipeline {pipeline} holds other content than what was compiled here ({said!r}, not {mark}); delete that version, "
            "or upload under another name with --pipeline."
        )
    return Uploaded(pipeline_id=pipeline_id, version_id=found["pipeline_version_id"], version=name, is_new=is_new)


def compiled_bytes(image: str, launch: LaunchSettings) -> bytes:
    """The compiled pipeline's YAML."""
    from pipelines.compiled import compile_pipeline

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        compile_pipeline(path, image=image, launch=launch)
        return path.read_bytes()


def experiment_id(client: Client, name: str) -> str:
    """The experiment of that name, made where there is none."""
    found = _experiment(client, name)
    if found is None:
        body = {"display_name": name, **_namespace(client)}
        found = client.create("/experiments", body, lambda: _experiment(client, name))
    if found.get("storage_state") == "ARCHIVED":
        raise BadInput(f"experiment {name!r} is archived; restore it in the UI, or give another name with --experiment.")
    return str(found["experiment_id"])


def named(name: str) -> str:
    """The API's filter for one display name."""
    return json.dumps({"predicates": [{"operation": 1, "key": "display_name", "stringValue": name}]})  # 1: EQUALS


def _pipeline(client: Client, name: str) -> str:
    found = _find_pipeline(client, name)
    if found is None:
        body = {"name": name, "display_name": name, "description": "Conditional learned retrieval (clrflow)", **_namespace(client)}
        found = client.create("/pipelines", body, lambda: _find_pipeline(client, name))
    return str(found["pipeline_id"])


def _find_pipeline(client: Client, name: str) -> dict[str, Any] | None:
    return _only(client, "/pipelines", "pipelines", name, _namespace(client))


def _version(client: Client, pipeline_id: str, name: str) -> dict[str, Any] | None:
    return _only(client, f"/pipelines/{pipeline_id}/versions", "pipeline_versions", name, {})


def _experiment(client: Client, name: str) -> dict[str, Any] | None:
    return _only(client, "/experiments", "experiments", name, _namespace(client))


def _only(client: Client, path: str, key: str, name: str, query: dict[str, str]) -> dict[str, Any] | None:
    """The object of that name; a server that doesn't know the filter's field is no reason to take another one for it."""
    for found in client.listed(path, key, {**query, "filter": named(name)}):
        if name in (found.get("display_name"), found.get("name")):
            return found
    return None


def _namespace(client: Client) -> dict[str, str]:
    return {"namespace": client.namespace} if client.namespace else {}
