"""What every launcher promises a step: old output is gone before the job starts, and success means that the new output is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from clrflow.errors import ClrflowError, ConfigError
from clrflow.launch import launch
from clrflow.launch.request import JobRequest
from clrflow.launch.settings import LaunchSettings
from clrflow.manifest import Manifest
from clrflow.steps import Run, StepContext
from clrflow.training.step import launch_settings
from tests.training import world


@pytest.fixture
def request_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(source: str) -> JobRequest:
        (tmp_path / "job_to_launch.py").write_text(source)
        return JobRequest(
            what="training", module="job_to_launch", arguments=(str(tmp_path / "out.json"),), num_processes=1, run_name="run", step="train",
            key="k", folder=str(tmp_path), output=str(tmp_path / "out.json"), stale=(str(tmp_path / "out.json"), str(tmp_path / "parts")),
        )  # fmt: skip

    return make


def test_what_an_earlier_attempt_left_is_gone_before_the_job_starts(request_of, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part-00007.parquet").touch()
    source = "import pathlib, sys\nout = pathlib.Path(sys.argv[1])\nout.write_text(str(out.with_name('parts').exists()))\n"
    launch(request_of(source), LaunchSettings())
    assert (tmp_path / "out.json").read_text() == "False"


def test_a_job_that_leaves_no_output_has_failed_whatever_it_says(request_of, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "out.json").write_text("from last week")
    with pytest.raises(ClrflowError, match=r"without an error but left no .*out\.json"):
        launch(request_of("print('done')\n"), LaunchSettings())


def context(own: str, **launch_values: str) -> StepContext:
    settings = world.config().model_copy(update={"launch": LaunchSettings.model_validate(launch_values)})
    inputs: dict[str, Manifest] = {}
    return StepContext(run=Run(name="r", workspace="/w", config=settings), inputs=inputs, folder="/w/f", launcher=own)


def test_a_steps_own_launcher_is_stronger_than_the_settings() -> None:
    assert launch_settings(context("")).launcher == "local"
    assert launch_settings(context("pytorchjob", image="trainer:1")).launcher == "pytorchjob"
    assert launch_settings(context("local", launcher="pytorchjob", image="trainer:1")).launcher == "local"


def test_a_launcher_that_lacks_its_settings_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"launcher='pytorchjob': .*launch\.image is empty"):
        launch_settings(context("pytorchjob"))
    with pytest.raises(ConfigError, match="launcher='slurm'"):
        launch_settings(context("slurm"))
