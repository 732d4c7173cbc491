"""The InferenceService against KServe's own Python models: every field is one of theirs, of their type, down to the probes."""

from __future__ import annotations

import subprocess
import sys
import types
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client import models as kubernetes_models

from tests.cluster.conftest import LOCAL_ROOT
from tests.manifests.files import the

pytestmark = pytest.mark.cluster

VERSION = "0.21.0"
PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}


@pytest.fixture(scope="module")
def models() -> Iterator[Any]:
    """The package's models alone: its server, and what that depends on, isn't installed."""
    folder = LOCAL_ROOT / "kserve"
    if not (folder / "kserve" / "models" / "__init__.py").exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), f"kserve=={VERSION}"]
        fetched = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if fetched.returncode:
            pytest.skip(f"kserve {VERSION} can't be had here: {fetched.stderr.strip().splitlines()[-1:]}")
        with zipfile.ZipFile(next(folder.glob("kserve-*.whl"))) as wheel:
            wheel.extractall(folder)
    package = types.ModuleType("kserve")
    package.__path__ = [str(folder / "kserve")]
    sys.modules["kserve"] = package
    try:
        from kserve import models

        yield models
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "kserve"]:
            del sys.modules[name]


def problems(models: Any, kind: str, value: Any, path: str) -> Iterator[str]:
    """What in `value` isn't as the model `kind` says."""
    if kind.startswith("list["):
        if not isinstance(value, list):
            yield f"{path}: not a list"
            return
        for number, each in enumerate(value):
            yield from problems(models, kind[5:-1], each, f"{path}[{number}]")
    elif kind.startswith("dict("):
        inner = kind[5:-1].partition(",")[2].strip()
        for name, each in value.items():
            yield from problems(models, inner, each, f"{path}.{name}")
    elif kind in PLAIN:
        if not isinstance(value, PLAIN[kind]):
            yield f"{path}: {value!r} is no {kind}"
    elif model := getattr(models, kind, None) or getattr(kubernetes_models, kind, None):
        names = {json_name: name for name, json_name in model.attribute_map.items()}
        for name, each in value.items():
            if name not in names:
                yield f"{path}.{name}: {kind} has no such field"
            else:
                yield from problems(models, model.openapi_types[names[name]], each, f"{path}.{name}")


def test_the_service_is_what_the_models_describe(models: Any) -> None:
    assert list(problems(models, "V1beta1InferenceService", the("InferenceService", "clrflow"), "")) == []


def test_a_misspelt_field_or_a_wrong_type_is_found(models: Any) -> None:
    service = the("InferenceService", "clrflow")
    service["spec"]["predictor"]["minReplica"] = 2
    service["spec"]["predictor"]["containers"][0]["startupProbe"]["periodSeconds"] = "5"
    found = list(problems(models, "V1beta1InferenceService", service, ""))
    assert [line.partition(":")[0] for line in found] == [
        ".spec.predictor.containers[0].startupProbe.periodSeconds",
        ".spec.predictor.minReplica",
    ]
