"""Each manifest is whole, referred to, pinned and careful with rights on its node, as far as can be told without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clrflow.config import PipelineConfig, load_config
from clrflow.presets import PRESETS
from tests.manifests.files import FOR_OTHER_PROGRAMS, MANIFESTS, documents, kustomizations, objects, pod_specs

ON_THE_NODE = {
    "clrflow-nvidia-device-plugin": "talks to the kubelet over root's socket",
    "clrflow-efa-device-plugin": "talks to the kubelet over root's socket, looks at the node's interfaces",
}
CONFIGS = sorted(MANIFESTS.rglob("clrflow.yaml"))


def name_of(path: Path) -> str:
    return path.relative_to(MANIFESTS).as_posix()


def references(path: Path) -> list[Path]:
    """What a kustomization takes in."""
    (found,) = documents(path)
    names = [*found.get("resources", ()), *found.get("components", ())]
    names += [name for generator in found.get("configMapGenerator", ()) for name in generator["files"]]
    return [(path.parent / name).resolve() for name in names]


def test_there_are_manifests_to_check() -> None:
    assert len(kustomizations()) > 15
    assert len(objects()) > 20


@pytest.mark.parametrize("path", kustomizations(), ids=name_of)
def test_a_kustomization_refers_to_what_exists(path: Path) -> None:
    for place in references(path):
        assert (place / "kustomization.yaml").exists() if place.is_dir() else place.is_file(), place


def test_no_file_lies_about_unused() -> None:
    used = {place for path in kustomizations() for place in references(path)} | set(kustomizations())
    unused = {name_of(path) for path in MANIFESTS.rglob("*") if path.is_file() and path.suffix in (".yaml", ".py") and path not in used}
    assert unused == FOR_OTHER_PROGRAMS


@pytest.mark.parametrize(("file", "document"), objects(), ids=lambda value: value if isinstance(value, str) else value["kind"])
def test_an_image_has_a_version(file: str, document: dict[str, Any]) -> None:
    for _, containers in pod_specs(document):
        for container in containers:
            _, colon, tag = container["image"].rpartition(":")
            assert colon, container["image"]
            assert tag != "latest"
            assert any(letter.isdigit() for letter in tag), container["image"]


def test_pods_are_refused_what_they_do_not_need() -> None:
    checked = set()
    for _, document in objects():
        for pod, containers in pod_specs(document):
            name = document["metadata"]["name"]
            checked.add(name)
            for container in containers:
                security = container["securityContext"]
                assert security["allowPrivilegeEscalation"] is False, name
                assert security["capabilities"] == {"drop": ["ALL"]}, name
                if name not in ON_THE_NODE:
                    assert security["readOnlyRootFilesystem"] is True, name
                    assert pod["runAsNonRoot"] is True, name
                    assert pod["runAsUser"] > 0, name
                    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}, name
    assert checked == {"clrflow", "clrflow-bootstrap", *ON_THE_NODE}


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_the_settings_are_ones_that_submit_takes(path: Path) -> None:
    config = load_config(file=str(path))
    assert config.launch.launcher == "pytorchjob"
    assert config.data.tables


def without_places(config: PipelineConfig) -> dict[str, Any]:
    """What a run learns, without where its data and pods are."""
    tree = config.model_dump(mode="json", exclude={"launch": True, "data": {"tables"}, "training": {"num_processes"}})
    return dict(tree)


@pytest.mark.parametrize("file", ["clrflow.yaml", "storage/s3/clrflow.yaml"])
def test_on_eks_the_preset_production_is_trained(file: str) -> None:
    config = load_config(file=str(MANIFESTS / "overlays/eks" / file))
    assert without_places(config) == without_places(PRESETS["production"]())


def test_settings_for_s3_mount_no_claim() -> None:
    config = load_config(file=str(MANIFESTS / "overlays/eks/storage/s3/clrflow.yaml"))
    assert config.launch.volumes == ()
    assert config.data.tables.startswith("s3://")
