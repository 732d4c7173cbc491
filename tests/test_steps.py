"""A step is done once for equal work, anew for changed work, and nothing half-written is taken for whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clrflow import steps, storage
from clrflow.config import load_config
from clrflow.errors import ClrflowError, DataError
from clrflow.manifest import Manifest, Output
from clrflow.steps import Run, Step, StepContext, StepResult, execute

CALLS: list[str] = []
"""Names of the steps whose code ran, in order."""


def write_lines(context: StepContext, name: str, text: str) -> StepResult:
    CALLS.append(name)
    storage.write_text(context.place("data", "lines.txt"), text)
    return StepResult(
        outputs={"lines": Output.of(context.place("data"), num_rows=1)},
        report="<p>done</p>",
        metrics={"rows": 1.0, "nothing": float("nan")},
        facts={"text": text},
    )


def first(context: StepContext) -> StepResult:
    return write_lines(context, "first", f"epochs {context.config.training.epochs}")


def second(context: StepContext) -> StepResult:
    return write_lines(context, "second", context.inputs["first"].facts["text"].upper())


def bad_data(context: StepContext) -> StepResult:
    storage.write_text(context.place("half.txt"), "half")
    raise DataError("events.parquet: column user_id is missing; add it.")


def crash(context: StepContext) -> StepResult:
    raise ZeroDivisionError("division by zero")


OUTSIDE = {"value": "a"}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Four steps whose functions are those above, found the way all are: by `module:function`."""
    module = sys.modules[__name__]
    monkeypatch.setitem(sys.modules, "steps_under_test", module)
    module.outside = lambda run: OUTSIDE["value"]  # type: ignore[attr-defined]
    known = (
        Step(name="first", version=1, inputs=(), settings=("training",), code="steps_under_test:first", outside="steps_under_test:outside"),
        Step(name="second", version=1, inputs=("first",), settings=("gate",), code="steps_under_test:second"),
        Step(name="bad_data", version=1, inputs=(), settings=(), code="steps_under_test:bad_data"),
        Step(name="crash", version=1, inputs=(), settings=(), code="steps_under_test:crash"),
    )
    monkeypatch.setattr(steps, "STEPS", {step.name: step for step in known})
    CALLS.clear()
    OUTSIDE["value"] = "a"
    return


def run_with(workspace: Path, *overrides: str, name: str = "r") -> str:
    return Run(name=name, workspace=str(workspace), config=load_config("small", overrides=overrides)).save()


def test_a_finished_step_is_found_by_another_run_and_its_code_is_not_run_again(tmp_path: Path) -> None:
    made = execute("first", run_with(tmp_path, name="monday"))
    found = execute("first", run_with(tmp_path, name="tuesday"))
    assert (made.reused, found.reused) == (False, True)
    assert made.manifest == found.manifest
    assert CALLS == ["first"]


def test_a_changed_setting_that_the_step_reads_makes_it_run_again_and_another_one_does_not(tmp_path: Path) -> None:
    execute("first", run_with(tmp_path))
    assert execute("first", run_with(tmp_path, "gate.min_value=0.5")).reused
    assert not execute("first", run_with(tmp_path, "training.epochs=9")).reused


def test_a_changed_input_makes_it_run_again_and_an_equal_one_made_elsewhere_does_not(tmp_path: Path) -> None:
    # 3 epochs and 4 epochs give other lines; a new version of `first` with equal lines has other fingerprints too, by its version.
    first_3 = execute("first", run_with(tmp_path)).uri
    first_4 = execute("first", run_with(tmp_path, "training.epochs=4")).uri
    assert first_3 != first_4
    execute("second", run_with(tmp_path), {"first": first_3})
    assert execute("second", run_with(tmp_path), {"first": first_3}).reused
    assert not execute("second", run_with(tmp_path), {"first": first_4}).reused
    # Equal lines under another key (a setting that doesn't show in them): second finds its result.
    first_equal = execute("first", run_with(tmp_path, "training.patience=9")).uri
    assert first_equal != first_3
    assert execute("second", run_with(tmp_path), {"first": first_equal}).reused


def test_what_a_step_reads_outside_its_inputs_is_part_of_the_key(tmp_path: Path) -> None:
    execute("first", run_with(tmp_path))
    OUTSIDE["value"] = "b"
    assert not execute("first", run_with(tmp_path)).reused


def test_a_new_version_of_a_step_does_not_serve_old_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    execute("first", run_with(tmp_path))
    monkeypatch.setitem(steps.STEPS, "first", dataclasses.replace(steps.STEPS["first"], version=2))
    assert not execute("first", run_with(tmp_path)).reused


def test_the_manifest_tells_what_was_made_from_what(tmp_path: Path) -> None:
    made = execute("first", run_with(tmp_path))
    manifest = execute("second", run_with(tmp_path), {"first": made.uri}).manifest
    assert manifest.inputs == {"first": made.manifest.fingerprint}
    assert manifest.outputs["lines"].num_rows == 1
    assert storage.read_bytes(storage.join(manifest.output("lines"), "lines.txt")) == b"EPOCHS 3"
    assert manifest.config == {"gate": load_config("small").gate.model_dump(mode="json")}
    assert manifest.peak_memory_bytes > 1e6
    assert Manifest.load(manifest.uri) == manifest
    with pytest.raises(ClrflowError, match="no output 'other'; it has lines"):
        manifest.output("other")


def test_a_metric_that_is_not_finite_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute("first", run_with(tmp_path)).scalars() == {"rows": 1.0}
    assert "not finite: nothing" in capsys.readouterr().out


def test_a_folder_without_manifest_was_never_finished_and_is_cleared(tmp_path: Path) -> None:
    uri = execute("first", run_with(tmp_path)).uri
    storage.remove(storage.join(uri, "manifest.json"))
    storage.write_text(storage.join(uri, "data", "stray.txt"), "from the attempt that died")
    again = execute("first", run_with(tmp_path))
    assert (again.uri, again.reused) == (uri, False)
    assert storage.list_files(storage.join(uri, "data")) == [storage.join(uri, "data", "lines.txt")]


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClrflowError, match="step second needs the results of first"):
        execute("second", run_with(tmp_path))


@pytest.mark.parametrize(
    ("step", "error", "kind", "code"),
    [("bad_data", DataError, "DataError", 2), ("crash", ZeroDivisionError, "unexpected ZeroDivisionError", 1)],
)
def test_a_failure_is_written_down_with_its_exit_code(tmp_path: Path, step: str, error: type, kind: str, code: int) -> None:
    uri = run_with(tmp_path)
    with pytest.raises(error):
        execute(step, uri)
    failure = storage.read_json(storage.join(uri, "failure.json"))
    assert (failure["step"], failure["kind"], failure["exit_code"]) == (step, kind, code)
    assert Run.load(uri).manifest_of(step) is None


SLOW_STEP = """
import sys, time
from clrflow import steps, storage
from clrflow.manifest import Output

def slow(context):
    storage.write_text(context.place("data", "half.txt"), "half")
    if sys.argv[2] == "hang":
        print("working", flush=True)
        time.sleep(60)
    storage.write_text(context.place("data", "whole.txt"), "whole")
    return steps.StepResult(outputs={"data": Output.of(context.place("data"))}, report="", facts={})

sys.modules["slow_module"] = sys.modules["__main__"]
steps.STEPS["slow"] = steps.Step(name="slow", version=1, inputs=(), settings=(), code="slow_module:slow")
outcome = steps.execute("slow", sys.argv[1])
print("reused" if outcome.reused else "made", outcome.uri, flush=True)
"""


def start(run_uri: str, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW_STEP, run_uri, mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_after_kill_9_in_a_step_the_same_command_does_it_again_and_then_finds_it(tmp_path: Path) -> None:
    run_uri = run_with(tmp_path)
    with start(run_uri, "hang") as killed:
        assert killed.stdout is not None
        while killed.stdout.readline() != "working\n":
            assert killed.poll() is None
        os.kill(killed.pid, signal.SIGKILL)
        assert killed.wait(timeout=10) == -signal.SIGKILL
    assert not list(tmp_path.rglob("manifest.json"))
    last_words = []
    for _ in range(2):
        with start(run_uri, "finish") as process:
            out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        last_words.append(out.splitlines()[-1].split()[0])
    assert last_words == ["made", "reused"]
    assert len(list(tmp_path.rglob("manifest.json"))) == 1


def test_two_processes_that_want_the_same_step_do_the_work_once(tmp_path: Path) -> None:
    run_uri = run_with(tmp_path)
    with start(run_uri, "hang") as holder:
        assert holder.stdout is not None
        while holder.stdout.readline() != "working\n":
            assert holder.poll() is None
        with start(run_uri, "finish") as waiter:
            assert waiter.stdout is not None
            assert "another process is at work" in waiter.stdout.readline()
            time.sleep(0.2)
            assert waiter.poll() is None
            holder.kill()
            out, _ = waiter.communicate(timeout=30)
        assert out.splitlines()[-1].startswith("made")


def test_a_moved_workspace_keeps_its_finished_steps_and_is_not_written_at_its_old_place(tmp_path: Path) -> None:
    run_uri = run_with(tmp_path / "old")
    execute("first", run_uri)
    (tmp_path / "old").rename(tmp_path / "new")
    moved = Run.load(str(tmp_path / "new/runs/r"))
    assert moved.workspace == str(tmp_path / "new")
    again = execute("first", moved.uri)
    assert again.reused
    assert again.manifest.output("lines") == storage.join(again.uri, "data")
    assert storage.read_bytes(storage.join(again.manifest.output("lines"), "lines.txt")) == b"epochs 3"
    assert moved.manifest_of("first") == again.manifest
    assert not (tmp_path / "old").exists()
