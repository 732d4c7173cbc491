"""The compiled pipeline is small, loads again and asks for the same parameters."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from clrflow.errors import BadInput, ClrflowError
from clrflow.steps import STEPS
from pipelines.compiled import compile_pipeline, parameters_of
from pipelines.conditional_retrieval import conditional_retrieval


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "pipeline.yaml"
    size = compile_pipeline(path)
    assert size == path.stat().st_size < 100_000
    return path


def ir(path: Path) -> Any:
    return next(iter(yaml.safe_load_all(path.read_text())))


def test_loading_it_again_gives_the_parameters_of_the_function_with_their_defaults(compiled: Path) -> None:
    # Kubeflow gives whole numbers back as 0.0; equal is what counts.
    written = {name: value.default for name, value in inspect.signature(conditional_retrieval.pipeline_func).parameters.items()}
    assert parameters_of(compiled) == written


def test_every_parameter_has_a_type_a_default_and_a_description_for_the_form(compiled: Path) -> None:
    parameters = ir(compiled)["root"]["inputDefinitions"]["parameters"]
    assert len(parameters) == 11
    for name, parameter in parameters.items():
        assert parameter["parameterType"] in ("STRING", "NUMBER_INTEGER"), name
        assert "defaultValue" in parameter, name
        assert len(parameter["description"]) > 20, name
        if parameter["defaultValue"] in ("", 0):
            assert "means" in parameter["description"], f"{name}: say what unset means"


def test_each_step_waits_for_what_it_reads_and_is_never_cached_on_its_parameters(compiled: Path) -> None:
    tasks = ir(compiled)["root"]["dag"]["tasks"]
    assert {name.replace("-", "_") for name in tasks} == {"configure", *STEPS}
    for name, step in STEPS.items():
        task = tasks[name.replace("_", "-")]
        waits = {earlier.replace("-", "_") for earlier in task["dependentTasks"]}
        assert waits >= {"configure", *step.inputs}
        assert not task["cachingOptions"].get("enableCache", False)
    assert "gate" in tasks["export-index"]["dependentTasks"]


def test_steps_have_names_that_a_person_reads_in_the_graph(compiled: Path) -> None:
    names = [task["taskInfo"]["name"] for task in ir(compiled)["root"]["dag"]["tasks"].values()]
    assert "Bootstrap from heuristics" in names
    assert all(name[0].isupper() for name in names)


def test_another_image_replaces_that_of_every_step(tmp_path: Path) -> None:
    compile_pipeline(tmp_path / "p.yaml", image="registry.local/clrflow:1")
    executors = ir(tmp_path / "p.yaml")["deploymentSpec"]["executors"]
    assert {executor["container"]["image"] for executor in executors.values()} == {"registry.local/clrflow:1"}


def test_a_pipeline_that_is_too_large_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ClrflowError, match=r"more than 1,000; move settings into a file"):
        compile_pipeline(tmp_path / "p.yaml", max_bytes=1000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["pipeline.json", "nowhere/pipeline.yaml"])
def test_a_place_that_can_not_be_written_is_refused_with_a_way_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="output"):
        compile_pipeline(tmp_path / name)


def test_the_parameters_of_one_step_stay_far_below_what_a_cluster_takes(compiled: Path) -> None:
    # 100 kB is the least known to break; a file carries larger settings (parameter config).
    assert len(json.dumps(parameters_of(compiled))) < 10_000


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").mkdir()
    with pytest.raises(BadInput, match="is a folder"):
        compile_pipeline(tmp_path / "pipeline.yaml")
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipeline.yaml"]
