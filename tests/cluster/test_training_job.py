"""The project's own training in pods: one master and one worker, killed and resumed, and the steps after it read what they wrote.

A whole pipeline runs once, undisturbed; what is killed afterwards trains on the same inputs with the same settings.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clrflow import storage
from clrflow.launch.settings import LaunchSettings
from clrflow.steps import Run
from tests.cluster.conftest import eventually
from tests.cluster.launching import Launching, Process

pytestmark = pytest.mark.cluster

NUM_EPOCHS = 12
"""Enough that a job outlives its lease by a while: an epoch takes about a second."""
KILLED_IN = 2
"""Number of the epoch in which something is killed."""
CLRFLOW = str(Path(sys.executable).with_name("clrflow"))


@dataclasses.dataclass(kw_only=True)
class Training:
    """One train step, in a folder of its own below the workspace."""

    launching: Launching
    run: Run
    inputs: dict[str, str]
    said: str = ""
    saved: int = 0
    """Step of the newest checkpoint when the job had been abandoned."""

    @property
    def folder(self) -> Path:
        (folder,) = Path(self.run.workspace).glob("steps/train/*")
        return folder

    @property
    def job(self) -> str:
        return next(job["metadata"]["name"] for job in self.launching.jobs() if job["metadata"]["labels"]["clrflow/run"] == self.run.name)

    def history(self) -> list[dict[str, Any]]:
        history: list[dict[str, Any]] = storage.read_json(str(self.folder / "curves.json"))["schedules"]["co_train"]["history"]
        return history

    def start(self) -> Process:
        return self.launching.train(self.run.uri, self.inputs)

    def until_killed(self) -> Process:
        process = self.start()
        process.wait_for(f"co_train epoch {KILLED_IN - 1}/{NUM_EPOCHS} (tables", within_s=240)
        return process

    def finish(self, process: Process) -> Training:
        code = process.wait(300)
        self.said = process.said
        assert code == 0, self.said
        return self


class Pipeline:
    """A whole pipeline by the command line, as from a laptop: the steps run here, training in pods, and later steps read what they wrote."""

    def __init__(self, launching: Launching):
        self.launching, self.folder = launching, launching.workspace.folder / "whole"
        self.folder.mkdir()
        launch = launching.settings(nodes=2)
        flat = {name: value for name, value in launch.items() if name not in ("volumes", "env")}
        settings = {
            "data.tables": f"{self.folder}/tables", "semantic_ids.num_codes": 16, "semantic_ids.max_epochs": 5, "model.dim": 16,
            "model.num_layers": 1, "training.schedule": "co_train", "training.num_processes": 2, "training.num_negatives": 32,
            "training.batch_size": 8, "training.epochs": NUM_EPOCHS, "training.patience": NUM_EPOCHS, "training.checkpoint_every_steps": 8,
            "gate.beat_popularity": "false", **{f"launch.{name}": value for name, value in flat.items()},
            "launch.volumes": json.dumps(launch["volumes"]), "launch.env": json.dumps(launch["env"]),
        }  # fmt: skip
        with self._start(
            "data", "synthetic", "tables", "--users=60", "--items=150", "--days=12", "--seed=1", "--events-per-user=15"
        ) as made:
            assert made.wait(120) == 0, self.said
        workspace = f"--workspace={self.folder}/w"
        self.process = self._start(
            "run", "--preset=small", workspace, "--name=undisturbed", *(f"--set={n}={v}" for n, v in settings.items())
        )

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [CLRFLOW, *arguments], cwd=self.folder, env={**os.environ, "KUBECONFIG": str(self.launching.cluster.kubeconfig)}, stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def until_it_trains(self) -> Training:
        """What the train step is asked for; it may not be done."""
        uri = f"{self.folder}/w/runs/undisturbed"

        def found() -> dict[str, str] | None:
            assert self.process.poll() in (None, 0), self.said
            inputs = {}
            for step in ("validate_data", "bootstrap", "semantic_ids"):
                manifest = Run.load(uri).manifest_of(step) if storage.exists(f"{uri}/run.json") else None
                if manifest is None:
                    return None
                inputs[step] = manifest.uri
            return inputs

        inputs = eventually(found, within_s=240, what="results of the steps before training")
        return Training(launching=self.launching, run=Run.load(uri), inputs=inputs)

    def finish(self) -> Training:
        code = self.process.wait(400)
        assert code == 0, self.said
        return dataclasses.replace(self.until_it_trains(), said=self.said)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


def again(whole: Training, name: str, **changes: Any) -> Training:
    """The same training in a workspace of its own; `changes` are to where and how it is launched."""
    launch = LaunchSettings.model_validate(whole.launching.settings(nodes=2, **changes))
    workspace = str(whole.launching.workspace.folder / name)
    run = Run(name=name, workspace=workspace, config=whole.run.config.model_copy(update={"launch": launch}))
    run.save()
    return dataclasses.replace(whole, run=run, said="")


def worker_killed(whole: Training, *, elastic: bool) -> Training:
    """As when a node is lost: no SIGTERM, no grace."""
    made = again(whole, "elastic" if elastic else "static", elastic=elastic, max_restarts=2)
    process = made.until_killed()
    worker = f"{made.job}-worker-{1 if elastic else 0}"
    launching = made.launching
    launching.cluster.core.delete_namespaced_pod(worker, launching.workspace.namespace, grace_period_seconds=0)
    return made.finish(process)


def abandoned(whole: Training) -> Training:
    """The launcher is killed, and comes again only after the job has ended by itself."""
    made = again(whole, "abandoned", lease_s=5, max_restarts=1)
    made.until_killed().kill()

    def runs() -> bool:
        return any(pod.status.phase == "Running" for pod in made.launching.pods() if pod.metadata.name.startswith(name))

    name = made.job
    eventually(lambda: not runs(), within_s=60, what="end of the abandoned job")
    steps = made.folder.glob("checkpoints/co_train/step-*/complete.json")
    made.saved = max(int(path.parent.name.removeprefix("step-")) for path in steps)
    return made.finish(made.start())


@pytest.fixture(scope="module")
def trainings(launching: Launching) -> Iterator[dict[str, concurrent.futures.Future[Training]]]:
    """All of this module, two at a time: one waits or starts while another trains. More would only take the cores from each other."""
    pipeline = Pipeline(launching)
    try:
        whole = pipeline.until_it_trains()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            yield {
                "undisturbed": pool.submit(pipeline.finish),
                "static": pool.submit(worker_killed, whole, elastic=False),
                "elastic": pool.submit(worker_killed, whole, elastic=True),
                "abandoned": pool.submit(abandoned, whole),
            }
    finally:
        pipeline.close()


Trainings = dict[str, "concurrent.futures.Future[Training]"]


def test_two_pods_train_and_leave_a_checkpoint_and_a_manifest(trainings: Trainings) -> None:
    trained = trainings["undisturbed"].result()
    assert (trained.folder / "manifest.json").exists()
    assert list(trained.folder.glob("checkpoints/co_train/best/complete.json"))
    assert sorted(path.name for path in trained.folder.glob("item_vectors/*.parquet")) == ["part-00000.parquet", "part-00001.parquet"]
    assert len(trained.history()) == NUM_EPOCHS
    assert f"co_train epoch {NUM_EPOCHS}/{NUM_EPOCHS}" in trained.said  # rank 0's progress streams into the step's log
    assert "restart" not in trained.said


def test_the_steps_after_training_read_what_the_pods_wrote(trainings: Trainings) -> None:
    run = trainings["undisturbed"].result().run
    found = {step: manifest for step in ("train", "evaluate", "publish") if (manifest := run.manifest_of(step))}
    assert storage.read_json(found["train"].output("curves"))["num_processes"] == 2
    assert found["evaluate"].inputs["train"] == found["train"].fingerprint
    assert found["publish"].facts["published"]


@pytest.mark.parametrize("form", ["static", "elastic"])
def test_a_worker_killed_in_mid_epoch_costs_no_accuracy(trainings: Trainings, form: str) -> None:
    trained, killed = trainings["undisturbed"].result(), trainings[form].result()
    assert "going on from step-" in killed.said
    assert "restart 1 of 2" in killed.said
    assert killed.said.count("made in namespace") == (2 if form == "static" else 1)
    assert ends_like(killed, trained)


def test_an_abandoned_training_saves_a_checkpoint_and_a_late_retry_goes_on_from_it(trainings: Trainings) -> None:
    trained, late = trainings["undisturbed"].result(), trainings["abandoned"].result()
    assert late.saved > 0
    assert f"going on from step-{late.saved:08d}" in late.said
    assert ends_like(late, trained)


def ends_like(found: Training, expected: Training) -> bool:
    """The last epoch's loss and score are those of an uninterrupted training."""
    return all(found.history()[-1][figure] == pytest.approx(expected.history()[-1][figure], rel=1e-5) for figure in ("loss", "score"))
