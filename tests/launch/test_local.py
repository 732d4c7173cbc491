"""torchrun on this machine: its end becomes a result or an error that can be acted on, and nothing outlives the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from clrflow.errors import BadInput, ClrflowError
from clrflow.launch.local import run_torchrun


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `job_under_test` whose source a test writes."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "job_under_test.py"


def test_every_process_runs_and_knows_its_rank(job: Path, tmp_path: Path) -> None:
    job.write_text("import os, sys, pathlib\npathlib.Path(sys.argv[1], os.environ['RANK']).write_text(os.environ['WORLD_SIZE'])\n")
    run_torchrun("job_under_test", [str(tmp_path)], num_processes=2, what="test")
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["2", "2"]


def test_what_the_job_prints_streams_through(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job.write_text("print('step 1 of 2')\n")
    run_torchrun("job_under_test", [], num_processes=1, what="test")
    assert "step 1 of 2" in capfd.readouterr().out


def test_a_failure_names_the_job_and_shows_its_last_lines(job: Path) -> None:
    job.write_text("print('reading shard 7', flush=True)\nraise RuntimeError('no such table')\n")
    with pytest.raises(ClrflowError) as caught:
        run_torchrun("job_under_test", [], num_processes=1, what="training")
    assert "training ended with exit code" in str(caught.value)
    assert "no such table" in str(caught.value)


def test_bad_input_found_by_a_worker_stays_bad_input(job: Path) -> None:
    job.write_text("import sys\nprint('clrflow worker error 2: items: 3 ids are unknown', flush=True)\nsys.exit(2)\n")
    with pytest.raises(BadInput, match="items: 3 ids are unknown"):
        run_torchrun("job_under_test", [], num_processes=1, what="training")


def test_killing_the_launcher_ends_its_workers(job: Path, tmp_path: Path) -> None:
    job.write_text(
        "import os, pathlib, time\nfrom clrflow.launch.torchrun import die_with_parent\ndie_with_parent()\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pid').write_text(str(os.getpid()))\ntime.sleep(120)\n"
    )
    code = "from clrflow.launch.local import run_torchrun; run_torchrun('job_under_test', [], num_processes=1, what='test')"
    launcher = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline, "the worker never started"
        time.sleep(0.1)
    worker = psutil.Process(int((tmp_path / "pid").read_text()))
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    gone, alive = psutil.wait_procs([worker], timeout=10)
    assert alive == []
    assert gone


def test_killing_the_launcher_while_a_worker_still_starts_leaves_no_orphan(job: Path, tmp_path: Path) -> None:
    # The launcher is killed before the worker asks to die with its parent, as in torch's seconds of import.
    job.write_text(
        "import os, pathlib, time\nfrom clrflow.launch.torchrun import die_with_parent\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n(here / 'pid').write_text(str(os.getpid()))\n"
        "while not (here / 'killed').exists():\n    time.sleep(0.05)\n"
        "die_with_parent()\n(here / 'worked on').touch()\ntime.sleep(120)\n"
    )
    code = "from clrflow.launch.local import run_torchrun; run_torchrun('job_under_test', [], num_processes=1, what='test')"
    launcher = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline, "the worker never started"
        time.sleep(0.1)
    worker = psutil.Process(int((tmp_path / "pid").read_text()))
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    (tmp_path / "killed").touch()
    _, alive = psutil.wait_procs([worker], timeout=10)
    assert alive == []
    assert not (tmp_path / "worked on").exists()
