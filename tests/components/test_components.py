"""What Kubeflow is told of each step agrees with what the step reads."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from clrflow.steps import STEPS
from components import PIPELINE_IMAGE, TORCH_IMAGE


def component(name: str) -> Any:
    return importlib.import_module(f"components.{name}.component").__dict__[name]


@pytest.mark.parametrize("name", STEPS)
def test_a_component_takes_the_run_and_one_place_for_each_step_that_it_reads(name: str) -> None:
    inputs = component(name).component_spec.inputs
    assert list(inputs) == ["run", *STEPS[name].inputs, *(["launcher"] if name == "train" else [])]
    assert {spec.type for spec in inputs.values()} == {"String"}


@pytest.mark.parametrize("name", STEPS)
def test_a_component_gives_the_interface_a_page_metrics_and_a_manifest(name: str) -> None:
    outputs = {key: spec.type.split("@")[0] for key, spec in component(name).component_spec.outputs.items()}
    assert outputs.pop("manifest") in ("system.Dataset", "system.Model")
    assert outputs == {"report": "system.HTML", "metrics": "system.Metrics", "Output": "String"}


@pytest.mark.parametrize("name", ["configure", *STEPS, "clean_up"])
def test_a_component_runs_in_the_pipeline_image_and_installs_nothing_when_its_pod_starts(name: str) -> None:
    container = component(name).component_spec.implementation.container
    assert container.image == (TORCH_IMAGE if name in ("semantic_ids", "train") else PIPELINE_IMAGE)
    assert "pip install" not in " ".join([*container.command, *container.args])
