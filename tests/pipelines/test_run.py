"""A run that fails is a failed run: the exit code, the message, what is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clrflow import lock, storage
from clrflow.steps import STEPS

CLRFLOW = str(Path(sys.executable).with_name("clrflow"))


def test_a_step_that_refuses_its_input_fails_the_run_with_code_2_and_says_where_the_log_is(tmp_path: Path) -> None:
    command = [CLRFLOW, "run", "--set", "data.tables=nowhere", "--workspace", "w", "--name", "r"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert result.returncode == 2
    assert "✓ configure" in result.stdout
    assert "✗ validate_data failed" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    assert result.stderr.startswith(f"error: step validate_data failed: data.tables='{tmp_path / 'nowhere'}' does not exist")
    log = tmp_path / "w/runs/r/log.txt"
    assert f"Full log: {log}" in result.stderr
    assert "DataError" in log.read_text()
    assert storage.read_json(str(tmp_path / "w/runs/r/failure.json"))["step"] == "validate_data"
    assert not (tmp_path / "w/runs/r/kfp").exists()


def test_the_compiled_yaml_runs_like_the_function_and_its_failed_step_fails_it(tmp_path: Path) -> None:
    from kfp import components, local

    from pipelines.compiled import compile_pipeline

    compile_pipeline(tmp_path / "pipeline.yaml")
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "kfp"))
    loaded = components.load_component_from_file(str(tmp_path / "pipeline.yaml"))
    with pytest.raises(RuntimeError, match="validate-data"):
        loaded(workspace=str(tmp_path / "w"), run_name="r", tables=str(tmp_path / "nowhere"), epochs=2)
    assert storage.read_json(str(tmp_path / "w/runs/r/run.json"))["config"]["training"]["epochs"] == 2
    assert storage.read_json(str(tmp_path / "w/runs/r/failure.json"))["exit_code"] == 2


def test_a_macro_in_a_parameter_ends_the_pipeline_in_its_first_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from kfp import local

    from pipelines.conditional_retrieval import conditional_retrieval

    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "kfp"))
    with pytest.raises(RuntimeError, match="configure"):
        conditional_retrieval(workspace=str(tmp_path / "w"), tables="s3://bucket/[[CurrentTime]]")
    assert "parameter data.tables='s3://bucket/[[CurrentTime]]': [[CurrentTime]] is a macro" in capfd.readouterr().out
    assert not (tmp_path / "w").exists()


def test_a_run_whose_lock_is_taken_goes_through_all_steps_doing_nothing_and_succeeds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from kfp import local

    from pipelines.conditional_retrieval import conditional_retrieval

    workspace = str(tmp_path / "w")
    lock.take(workspace, "daily", "monday")
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "kfp"))
    conditional_retrieval(workspace=workspace, tables="/t", lock="daily")  # a step that failed would raise
    said = capfd.readouterr().out
    for step in STEPS:
        assert f"{step}: skipped: another run, monday, held the lock daily" in said
    assert ": succeeded: run monday held the lock daily, so nothing was done." in said
    assert not (tmp_path / "w/steps").exists()
    holder = lock.holder(workspace, "daily")
    assert holder is not None
    assert holder.run == "monday"
