"""A real Kubeflow Pipelines, when KFP_ENDPOINT names one: submit, follow, look at what the UI would show, terminate, schedule.

KFP_ENDPOINT: base URL of the API. The steps' pods need the project's images and a folder that they and this machine share:
- CLRFLOW_TEST_KFP_CONFIG: YAML file of settings whose part `launch` mounts that folder (and names images' pull secrets, the trainer image, …);
- CLRFLOW_TEST_KFP_FOLDER: the folder, at the same absolute path here and in pods;
- CLRFLOW_TEST_KFP_IMAGE: name of the pipeline images, as for `clrflow submit --image`; unset: the components' own.
- CLRFLOW_TEST_KFP_LAUNCHER: `pytorchjob` trains in a job of its own; unset: in the step's pod.
KFP_NAMESPACE: the profile's namespace where the installation has several users.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clrflow import storage
from clrflow.data.synthetic import generate
from clrflow.steps import STEPS, Run
from pipelines.kubeflow.client import Client
from pipelines.kubeflow.credentials import credentials
from pipelines.kubeflow.follow import states_of
from pipelines.kubeflow.schedule import recurring_runs

ENDPOINT = os.environ.get("KFP_ENDPOINT", "")
FOLDER = os.environ.get("CLRFLOW_TEST_KFP_FOLDER", "")
CONFIG = os.environ.get("CLRFLOW_TEST_KFP_CONFIG", "")
NAMESPACE = os.environ.get("KFP_NAMESPACE", "")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not ENDPOINT, reason="KFP_ENDPOINT names no Kubeflow Pipelines"),
    pytest.mark.skipif(
        bool(ENDPOINT) and not (FOLDER and CONFIG), reason="CLRFLOW_TEST_KFP_FOLDER and CLRFLOW_TEST_KFP_CONFIG name no shared folder"
    ),
]
SMALL = (
    "semantic_ids.num_codes=16", "semantic_ids.max_epochs=10", "model.dim=16", "model.num_layers=1", "training.schedule=co_train",
    "training.epochs=2", "training.num_negatives=32", "gate.beat_popularity=false",
)  # fmt: skip
CLRFLOW = str(Path(sys.executable).with_name("clrflow"))


@pytest.fixture(scope="module")
def client() -> Client:
    return Client(ENDPOINT, credentials(), namespace=NAMESPACE)


@pytest.fixture(scope="module")
def folder() -> Path:
    """A new folder that the pods reach, with a small log in it."""
    made = Path(FOLDER) / f"kubeflow-{uuid.uuid4().hex[:8]}"
    made.mkdir(parents=True)
    made.chmod(0o777)
    generate(str(made / "tables"), users=80, items=150, days=12, seed=1, events_per_user=30)
    return made


def clrflow(command: str, folder: Path, *arguments: str, timeout_s: float = 1800) -> subprocess.CompletedProcess[str]:
    given = [command, "--endpoint", ENDPOINT, "--config", CONFIG, "--workspace", str(folder / "w"), "--json"]
    for override in (f"data.tables={folder}/tables", *SMALL):
        given += ["--set", override]
    for option, value in (
        ("--namespace", NAMESPACE),
        ("--image", os.environ.get("CLRFLOW_TEST_KFP_IMAGE", "")),
        ("--launcher", os.environ.get("CLRFLOW_TEST_KFP_LAUNCHER", "")),
    ):
        given += [option, value] if value else []
    given += arguments  # last, as the last of two settings counts
    return subprocess.run([CLRFLOW, *given], capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.fixture(scope="module")
def submitted(folder: Path) -> dict[str, Any]:
    """The small run, waited for."""
    done = clrflow("submit", folder, "--run-name", "small", "--wait", "--timeout", "1700")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_submitted_run_succeeds_with_all_its_steps(client: Client, submitted: dict[str, Any]) -> None:
    assert submitted["state"] == "SUCCEEDED"
    states = {step: state for step, (state, _) in states_of(client.call("GET", f"/runs/{submitted['run_id']}")).items()}
    assert states == dict.fromkeys(("configure", *STEPS, "clean_up"), "SUCCEEDED")


def test_every_step_left_its_page_and_finite_metrics_in_the_shared_workspace(folder: Path, submitted: dict[str, Any]) -> None:
    run = Run.load(str(folder / "w/runs" / submitted["run"]))
    for step in STEPS:
        manifest = run.manifest_of(step)
        assert manifest is not None, step
        assert "<html" in storage.read_bytes(manifest.report_uri).decode(), step
    assert (run.manifest_of("train") or pytest.fail("no train")).metrics["loss"] > 0


def test_a_steps_log_tells_what_it_does(submitted: dict[str, Any]) -> None:
    kubernetes = pytest.importorskip("kubernetes")
    try:
        kubernetes.config.load_kube_config()
    except kubernetes.config.ConfigException:
        pytest.skip("no KUBECONFIG to read the pods' logs with")
    core = kubernetes.client.CoreV1Api()
    pods = core.list_pod_for_all_namespaces(label_selector=f"pipeline/runid={submitted['run_id']}").items
    assert pods
    logs = ""
    for pod in pods:
        names = [container.name for container in pod.spec.containers if container.name in ("main", "user-container")]
        logs += "".join(core.read_namespaced_pod_log(pod.metadata.name, pod.metadata.namespace, container=name) for name in names)
    assert "validate_data: finished in" in logs
    assert "train: validation picks co_train" in logs
    assert "run small: succeeded" in logs


def test_submitting_the_same_again_uploads_nothing_and_finds_the_steps(folder: Path, submitted: dict[str, Any]) -> None:
    done = clrflow("submit", folder, "--run-name", "again", "--wait", "--timeout", "1700")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert not told["uploaded"]
    assert told["version_id"] == submitted["version_id"]
    reused = {step: storage.read_json(str(folder / f"w/runs/again/{step}.json"))["reused"] for step in ("bootstrap", "train", "evaluate")}
    assert reused == dict.fromkeys(reused, True)


def test_a_failing_run_ends_with_1_and_the_steps_own_words(folder: Path) -> None:
    done = clrflow("submit", folder, "--run-name", "broken", "--set", "data.tables=/nowhere", "--wait", "--timeout", "600")
    assert done.returncode == 1
    assert "step validate_data: data.tables='/nowhere' does not exist" in done.stderr


def test_a_terminated_run_gives_its_lock_back(client: Client, folder: Path) -> None:
    started = json.loads(clrflow("submit", folder, "--run-name", "stopped", "--lock", "nightly", "--set", "training.epochs=200").stdout)
    lock = folder / "w/locks/nightly.json"
    _until(lock.exists, 300, "the run takes the lock")
    client.call("POST", f"/runs/{started['run_id']}:terminate")
    _until(lambda: not lock.exists(), 180, "the exit handler gives the lock back")
    _until(lambda: client.call("GET", f"/runs/{started['run_id']}")["state"] in ("FAILED", "CANCELED"), 180, "the run is ended")


@pytest.fixture
def scheduled(client: Client, folder: Path) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:6]}"
    yield name
    subprocess.run([CLRFLOW, "schedule", "--endpoint", ENDPOINT, "--delete", name], check=False, timeout=120, capture_output=True)


def test_a_schedule_is_replaced_and_its_runs_find_finished_steps(
    client: Client, folder: Path, submitted: dict[str, Any], scheduled: str
) -> None:
    for cron in ("0 0 6 * * *", "30 * * * * *"):
        done = clrflow("schedule", folder, "--cron", cron, "--name", scheduled)
        assert done.returncode == 0, done.stderr
    (recurring,) = [found for found in recurring_runs(client) if found["display_name"] == scheduled]
    assert recurring["trigger"]["cron_schedule"]["cron"] == "30 * * * * *"
    assert recurring["no_catchup"] is True
    assert recurring["pipeline_version_reference"]["pipeline_version_id"] == submitted["version_id"]
    _until(lambda: any((folder / "w/jobs").glob("*.json")), 240, "the schedule starts a run")


def _until(holds: Any, within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(2)
