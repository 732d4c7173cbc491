"""Runs the compiled DAG on this machine through kfp.local, step by step in child processes, and says clearly how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from clrflow import storage
from clrflow.errors import ClrflowError
from pipelines.local_output import StepOutput


class StepFailed(ClrflowError):
    """A step ended the run; carries the exit code of its reason."""

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalRun:
    """How a run on this machine went."""

    times: dict[str, float]
    """Seconds by step, as the caller saw them: start of the process, look-up and work."""
    reused: frozenset[str]
    log: str


def run_locally(arguments: dict[str, Any], run_uri: str) -> LocalRun:
    """Execute the pipeline with these parameters; `run_uri` is where configure will put the run. Raises StepFailed."""
    from kfp import local

    from pipelines.conditional_retrieval import conditional_retrieval

    # torch's threads spin while they wait: on cores that are busy already one thread a process is often three times cheaper.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONUNBUFFERED"] = "1"
    failure_uri = storage.join(run_uri, "failure.json")
    storage.remove(failure_uri)
    with _folder_for(run_uri) as folder, (folder / "log.txt").open("w") as log:
        # Below the run and removed afterwards: it holds copies of manifests and reports only. workspace_root stays unset, since kfp
        # removes whatever folder it is given there.
        root = folder / "kfp"
        output = StepOutput(sys.stdout, log)
        try:
            with _quiet(), contextlib.redirect_stdout(cast(TextIO, output)), _ends_children():
                local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(root), raise_on_error=True)
                conditional_retrieval(**arguments)
        except RuntimeError as error:
            raise _failure(output, failure_uri, str(folder / "log.txt"), str(error)) from None
        finally:
            shutil.rmtree(root, ignore_errors=True)
        return LocalRun(times=output.times, reused=frozenset(output.reused), log=str(folder / "log.txt"))


def _failure(output: StepOutput, failure_uri: str, log: str, kfp_message: str) -> StepFailed:
    """What went wrong, from the failure that the step wrote down or, if it wrote none, from how its process ended."""
    again = "Run the same command again: finished steps are kept."
    if storage.exists(failure_uri):
        failure = storage.read_json(failure_uri)
        kind = "" if failure["exit_code"] == 2 or not failure["kind"].startswith("unexpected") else f"{failure['kind']}: "
        hint = "" if failure["exit_code"] == 2 else f"\n{again}"
        return StepFailed(f"step {failure['step']} failed: {kind}{failure['message']}{hint}\nFull log: {log}", failure["exit_code"])
    if output.failed == "configure":
        # Settings are refused before the run exists, so nobody wrote the failure down; the last line of the traceback says it.
        # A process that was killed left no such line, and its settings are none the worse.
        lines = [line.strip() for line in Path(log).read_text().splitlines() if "Error: " in line or "BadInput: " in line]
        if lines:
            return StepFailed(f"settings refused: {lines[-1].partition(': ')[2]}\nFull log: {log}", 2)
    if output.failed:
        how = "was killed (by hand, or by the system when memory ran out)" if output.killed else "ended without saying why"
        return StepFailed(f"step {output.failed} {how}. {again}\nFull log: {log}")
    return StepFailed(f"the pipeline could not run: {kfp_message}\nFull log: {log}")


@contextlib.contextmanager
def _folder_for(run_uri: str) -> Iterator[Path]:
    """The run's own folder where it is on this machine, else a temporary one whose log is kept."""
    if storage.is_local(run_uri):
        folder = storage.local_path(run_uri)
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix="clrflow-"))
    yield folder


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """kfp warns of things that don't matter on one machine (pod settings that are ignored here)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _ends_children() -> Iterator[None]:
    """On Ctrl-C, SIGTERM or any error no step's process is left behind."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except BaseException:
        _end_descendants(os.getpid())
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)


def _end_descendants(pid: int) -> None:
    """SIGTERM to all processes below `pid`, deepest first; a system without /proc leaves it to the terminal's own signal."""
    with contextlib.suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                _end_descendants(int(child))
                os.kill(int(child), signal.SIGTERM)
