"""Manifests built by kubectl and sent to the API server, object by object, as server-side apply with strict field validation."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from typing import Any

import yaml

from clrflow.launch.cluster.api import ApiError, Cluster
from tests.cluster.conftest import TestCluster

MANIFESTS = Path(__file__).parents[2] / "manifests"
MANAGER = "clrflow-tests"


def build(cluster: TestCluster, *folders: str, namespace: str = "") -> list[dict[str, Any]]:
    """What `kubectl kustomize` makes of folders below manifests/, the first a base or overlay and the rest components."""
    return list(yaml.load_all(_built(cluster, folders, namespace), yaml.CSafeLoader))  # the C loader, as tests build often


@functools.cache
def _built(cluster: TestCluster, folders: tuple[str, ...], namespace: str) -> str:
    with tempfile.TemporaryDirectory() as made:
        first, *components = [os.path.relpath(MANIFESTS / folder, Path(made).resolve()) for folder in folders]
        whole = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [first], "components": components}
        if namespace:
            whole["namespace"] = namespace
        Path(made, "kustomization.yaml").write_text(yaml.safe_dump(whole))
        return cluster.kubectl("kustomize", made).stdout


def called(document: dict[str, Any]) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


class Applier:
    """Applies objects; knows the API's paths by discovery."""

    def __init__(self, cluster: TestCluster):
        self.api = Cluster(cluster.api, namespace="")
        self._resources: dict[str, dict[str, dict[str, Any]]] = {}

    def served(self, document: dict[str, Any]) -> bool:
        """Whether the API server knows the kind in that version."""
        return document["kind"] in self._of(document["apiVersion"])

    def apply(self, document: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Raises ApiError where the server refuses it, also for a field that the kind doesn't have."""
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict", "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
        # An unknown field is a 500 to the server, so a 500 isn't worth another try.
        applied: dict[str, Any] = self.api.call(
            "PATCH", self._path(document), body=document, query=query, content_type="application/apply-patch+yaml", patience_s=0
        )
        return applied

    def delete(self, document: dict[str, Any]) -> None:
        try:
            self.api.call("DELETE", self._path(document))
        except ApiError as error:
            if error.status != 404:
                raise

    def _path(self, document: dict[str, Any]) -> str:
        resource = self._of(document["apiVersion"])[document["kind"]]
        namespace = f"/namespaces/{document['metadata']['namespace']}" if resource["namespaced"] else ""
        return f"{_root(document['apiVersion'])}{namespace}/{resource['name']}/{document['metadata']['name']}"

    def _of(self, version: str) -> dict[str, dict[str, Any]]:
        if version not in self._resources:
            try:
                listed = self.api.call("GET", _root(version))["resources"]
            except ApiError as error:
                if error.status != 404:
                    raise
                listed = []
            self._resources[version] = {each["kind"]: each for each in listed if "/" not in each["name"]}
        return self._resources[version]


def _root(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"
