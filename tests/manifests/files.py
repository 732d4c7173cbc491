"""The manifests as plain objects, read without kubectl; tests/cluster builds them and applies them to an API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).parents[2] / "manifests"
FOR_OTHER_PROGRAMS = {"overlays/eks/managed-node-group.eksctl.yaml"}
"""Files that no kustomization holds: eksctl reads this one."""


class StrictLoader(yaml.SafeLoader):
    """PyYAML lets the later of two equal keys win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.value != "<<"]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.load_all(path.read_text(), StrictLoader) if document]


def kustomizations() -> list[Path]:
    """All files named kustomization.yaml."""
    return sorted(MANIFESTS.rglob("kustomization.yaml"))


def kustomization(folder: str) -> dict[str, Any]:
    (found,) = documents(MANIFESTS / folder / "kustomization.yaml")
    return found


def objects() -> list[tuple[str, dict[str, Any]]]:
    """Every Kubernetes object with the file that holds it, before patches."""
    files = sorted(path for path in MANIFESTS.rglob("*.yaml") if path.name not in ("kustomization.yaml", "clrflow.yaml"))
    names = [(path, path.relative_to(MANIFESTS).as_posix()) for path in files]
    return [(name, document) for path, name in names if name not in FOR_OTHER_PROGRAMS for document in documents(path)]


def the(kind: str, name: str) -> dict[str, Any]:
    """The one object of that kind and name."""
    (found,) = [document for _, document in objects() if (document["kind"], document["metadata"]["name"]) == (kind, name)]
    return found


def pod_specs(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """(pod's security context, its containers) of whatever starts pods, in one shape."""
    kind, spec = document["kind"], document.get("spec", {})
    if kind == "SparkApplication":
        for part in (spec["driver"], spec["executor"]):
            yield part["podSecurityContext"], [{"image": spec["image"], **part}]
    elif kind == "InferenceService":
        yield spec["predictor"]["securityContext"], spec["predictor"]["containers"]
    elif "template" in spec and "containers" in spec["template"].get("spec", {}):
        pod = spec["template"]["spec"]
        yield pod.get("securityContext", {}), [*pod["containers"], *pod.get("initContainers", [])]
