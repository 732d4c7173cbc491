"""The compiled pipeline is small, loads again and asks for the same parameters."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from clrflow import __version__
from clrflow.errors import BadInput, ClrflowError, ConfigError
from clrflow.launch.settings import LaunchSettings
from clrflow.steps import STEPS
from pipelines.compiled import compile_pipeline, images_of, parameters_of
from pipelines.conditional_retrieval import conditional_retrieval


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "pipeline.yaml"
    size = compile_pipeline(path)
    assert size == path.stat().st_size < 100_000
    return path


def ir(path: Path) -> Any:
    return next(iter(yaml.safe_load_all(path.read_text())))


def tasks_of(spec: Any) -> dict[str, Any]:
    """All tasks of the pipeline by name: the exit handler's, and those of the group that it watches."""
    return {**spec["root"]["dag"]["tasks"], **spec["components"]["comp-exit-handler-1"]["dag"]["tasks"]}


def pods_of(path: Path) -> dict[str, Any]:
    """What Kubernetes is asked for each step's pod: `exec-train` → its part of the platform's specification."""
    _, platform = yaml.safe_load_all(path.read_text())
    executors: dict[str, Any] = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    return executors


def test_loading_it_again_gives_the_parameters_of_the_function_with_their_defaults(compiled: Path) -> None:
    # Kubeflow gives whole numbers back as 0.0; equal is what counts.
    written = {name: value.default for name, value in inspect.signature(conditional_retrieval.pipeline_func).parameters.items()}
    assert parameters_of(compiled) == written


def test_every_parameter_has_a_type_a_default_and_a_description_for_the_form(compiled: Path) -> None:
    parameters = ir(compiled)["root"]["inputDefinitions"]["parameters"]
    assert len(parameters) == 14
    for name, parameter in parameters.items():
        assert parameter["parameterType"] in ("STRING", "NUMBER_INTEGER"), name
        assert "defaultValue" in parameter, name
        assert len(parameter["description"]) > 20, name
        if parameter["defaultValue"] in ("", 0):
            assert "means" in parameter["description"], f"{name}: say what unset means"


def test_each_step_waits_for_what_it_reads_and_is_never_cached_on_its_parameters(compiled: Path) -> None:
    tasks = tasks_of(ir(compiled))
    assert {name.replace("-", "_") for name in tasks} == {"configure", *STEPS, "clean_up", "exit_handler_1"}
    for name, step in STEPS.items():
        task = tasks[name.replace("_", "-")]
        waits = {earlier.replace("-", "_") for earlier in task["dependentTasks"]}
        assert waits >= {"configure", *step.inputs}
        assert not task["cachingOptions"].get("enableCache", False)
    assert "gate" in tasks["export-index"]["dependentTasks"]


def test_the_exit_handler_follows_all_steps_however_they_ended_and_knows_the_run_by_kubeflows_id(compiled: Path) -> None:
    root = ir(compiled)["root"]["dag"]["tasks"]
    last = root["clean-up"]
    assert set(root) == {"clean-up", "exit-handler-1"}
    assert last["dependentTasks"] == ["exit-handler-1"]
    assert last["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    assert not last["cachingOptions"].get("enableCache", False)
    job = {"runtimeValue": {"constant": "{{$.pipeline_job_uuid}}"}}
    assert last["inputs"]["parameters"]["job"] == job
    assert tasks_of(ir(compiled))["configure"]["inputs"]["parameters"]["job"] == job


def test_every_pod_learns_its_workflow_and_run_and_asks_for_cpu_and_memory_but_never_a_gpu(compiled: Path) -> None:
    pods = pods_of(compiled)
    for name, executor in ir(compiled)["deploymentSpec"]["executors"].items():
        fields = {field["name"]: field["fieldPath"] for field in pods[name]["fieldPathAsEnv"]}
        assert fields == {
            "CLRFLOW_KFP_WORKFLOW": "metadata.labels['workflows.argoproj.io/workflow']",
            "CLRFLOW_KFP_RUN_ID": "metadata.labels['pipeline/runid']",
        }
        resources = executor["container"]["resources"]
        assert resources["resourceCpuRequest"], name
        assert resources["resourceMemoryRequest"], name
        assert "accelerator" not in resources
        assert "nodeSelector" not in pods[name]


def test_settings_of_the_launch_part_reach_every_steps_pod(tmp_path: Path) -> None:
    launch = LaunchSettings.model_validate(
        {
            "volumes": [{"claim": "fsx", "path": "/mnt/data"}],
            "env": {"AWS_REGION": "eu-west-1"},
            "secret_env": [{"name": "AWS_SECRET_ACCESS_KEY", "secret": "s3", "key": "password"}],
            "pull_secrets": ["registry"],
            "webhook": {"secret": "alerts", "key": "url"},
            "step_resources": {"bootstrap": {"memory": "64Gi"}},
        }
    )
    compile_pipeline(tmp_path / "p.yaml", launch=launch)
    pods, executors = pods_of(tmp_path / "p.yaml"), ir(tmp_path / "p.yaml")["deploymentSpec"]["executors"]
    for name, pod in pods.items():
        assert [(mount["constant"], mount["mountPath"]) for mount in pod["pvcMount"]] == [("fsx", "/mnt/data")], name
        assert [secret["secretName"] for secret in pod["imagePullSecret"]] == ["registry"]
        secrets = {
            pair["envVar"]: (secret["secretName"], pair["secretKey"]) for secret in pod["secretAsEnv"] for pair in secret["keyToEnv"]
        }
        assert secrets.pop("AWS_SECRET_ACCESS_KEY") == ("s3", "password")
        # Whoever has the web service's URL can write there, so only the step that tells it does.
        assert secrets == ({"CLRFLOW_WEBHOOK_URL": ("alerts", "url")} if name == "exec-clean-up" else {})
        environment = {pair["name"]: pair["value"] for pair in executors[name]["container"]["env"]}
        assert environment == {"AWS_REGION": "eu-west-1", "PYTHONUNBUFFERED": "1"}
    assert executors["exec-bootstrap"]["container"]["resources"]["resourceMemoryRequest"] == "64Gi"
    assert executors["exec-bootstrap"]["container"]["resources"]["resourceCpuRequest"] == "500m"


def test_resources_of_a_step_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"launch\.step_resources\.pretrain: there is no step 'pretrain'"):
        compile_pipeline(tmp_path / "p.yaml", launch=LaunchSettings(step_resources={"pretrain": {"cpu": "1"}}))


def test_training_in_its_own_pod_has_room_for_tensors_between_processes(compiled: Path, tmp_path: Path) -> None:
    (mount,) = pods_of(compiled)["exec-train"]["emptyDirMounts"]
    assert (mount["mountPath"], mount["medium"], mount["sizeLimit"]) == ("/dev/shm", "Memory", "2Gi")  # noqa: S108
    launch = LaunchSettings(launcher="pytorchjob", image="clrflow/trainer:1")
    compile_pipeline(tmp_path / "p.yaml", launch=launch)
    assert "emptyDirMounts" not in pods_of(tmp_path / "p.yaml")["exec-train"]


def test_steps_have_names_that_a_person_reads_in_the_graph(compiled: Path) -> None:
    names = [task["taskInfo"]["name"] for task in tasks_of(ir(compiled)).values()]
    assert "Bootstrap from heuristics" in names
    assert all(name[0].isupper() for name in names)


def test_another_image_replaces_that_of_every_step_and_torch_is_only_where_it_is_used(tmp_path: Path) -> None:
    compile_pipeline(tmp_path / "p.yaml", image="registry.local/clrflow:1")
    executors = ir(tmp_path / "p.yaml")["deploymentSpec"]["executors"]
    images = {name: executor["container"]["image"] for name, executor in executors.items()}
    torch = {"exec-semantic-ids", "exec-train"}
    assert {images[name] for name in torch} == {"registry.local/clrflow:1-torch-cpu"}
    assert {image for name, image in images.items() if name not in torch} == {"registry.local/clrflow:1-data"}


@pytest.mark.parametrize(
    ("image", "data"),
    [
        ("host:5000/a/pipeline", f"host:5000/a/pipeline:{__version__}-data"),
        ("host:5000/a/pipeline:7", "host:5000/a/pipeline:7-data"),
        ("localhost/clrflow-pipeline:{target}", "localhost/clrflow-pipeline:data"),
    ],
)
def test_an_images_name_is_completed_by_its_target(image: str, data: str) -> None:
    assert images_of(image)["data"] == data


@pytest.mark.parametrize("image", ["-x", "a b", "a@sha256:00", "a/{tag}"])
def test_an_image_that_can_not_be_completed_is_refused(image: str) -> None:
    with pytest.raises(BadInput, match="give the name of the pipeline images"):
        images_of(image)


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
