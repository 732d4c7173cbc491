"""A pod of a job, run as a plain process: it meets its peers, tells what went wrong by its exit code, and lets its workers save."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clrflow.errors import BadInput, ClrflowError
from clrflow.launch import worker
from clrflow.launch.local import free_port
from clrflow.launch.torchrun import Output

BEGIN = "import os, signal, sys, time\nfrom clrflow.launch.torchrun import tell_end, worker_begins\nworker_begins()\n"


class Pods:
    """Starts workers as the operator would: the same command, an environment that says who is who."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()
        self.started: list[subprocess.Popen[str]] = []

    def program(self, source: str) -> None:
        (self.folder / "job_in_pod.py").write_text(BEGIN + source)

    def start(self, *options: str, nodes: int = 1, elastic: bool = False, node: int = 0, max_restarts: int = 0) -> subprocess.Popen[str]:
        meeting = {"PET_RDZV_ENDPOINT": f"{socket.gethostname()}:{self.port}", "PET_RDZV_ID": "job", "PET_MAX_RESTARTS": str(max_restarts)}
        static = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port), "PET_NODE_RANK": str(node)}
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1", **(meeting if elastic else static)}
        command = [sys.executable, "-u", "-m", "clrflow.launch.worker", f"--nodes={nodes}", "--processes=1", *options]
        process = subprocess.Popen(
            [*command, *(["--elastic"] if elastic else []), "--", "job_in_pod", str(self.folder)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 90
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"no {name}"
            time.sleep(0.1)


@pytest.fixture
def pods(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Pods(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_two_pods_meet_and_share_the_ranks(pods: Pods) -> None:
    pods.program("print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    second = pods.start(nodes=2, node=1)
    first = pods.start(nodes=2, node=0)
    said = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0]
    assert "rank 0 of 2" in said[0]
    assert "rank 1 of 2" in said[1]


def test_bad_input_is_never_restarted(pods: Pods) -> None:
    pods.program("tell_end(2, 'items: 3 ids are unknown')\nsys.exit(2)\n")
    process = pods.start(elastic=True, max_restarts=3)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    assert said.count("clrflow worker start") == 1
    assert "clrflow worker error 2: items: 3 ids are unknown" in said


@pytest.mark.parametrize(("elastic", "code"), [(False, 75), (True, 143)])
def test_sigterm_lets_the_workers_save(pods: Pods, elastic: bool, code: int) -> None:
    pods.program(
        "folder = sys.argv[1]\n"
        "def save(*_):\n    open(folder + '/saved', 'w').close()\n    tell_end(75, 'saved', told_to_stop=True)\n    os._exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\nopen(folder + '/ready', 'w').close()\ntime.sleep(120)\n"
    )
    process = pods.start(elastic=elastic, max_restarts=3)
    pods.wait_for("ready")
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert (pods.folder / "saved").exists()
    assert said.count("clrflow worker start") == 1


def test_an_abandoned_elastic_job_ends_for_good(pods: Pods) -> None:
    pods.program("tell_end(76, 'nobody follows')\nos._exit(76)\n")
    process = pods.start(elastic=True, max_restarts=3)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 75  # below 128, so the operator doesn't start the pod again
    assert said.count("clrflow worker start") == 1


def test_a_pod_that_does_not_see_the_lease_says_what_to_mount(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"can't see .*lease\.json.*launch\.volumes"):
        worker.check_lease(str(tmp_path / "launch" / "lease.json"), wait_s=0)


def test_missing_efa_devices_end_the_pod_before_it_starts_anything(tmp_path: Path) -> None:
    (tmp_path / "uverbs0").touch()
    worker.check_devices(1, tmp_path)
    with pytest.raises(ClrflowError, match=r"1 EFA device\(s\) .* needs 32"):
        worker.check_devices(32, tmp_path)


def test_a_host_that_never_answers_is_named() -> None:
    arguments = worker.parse(["--nodes=2", "--processes=1"])
    group = worker.Group.from_environment(arguments, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "1"})
    with pytest.raises(ClrflowError, match=r"127\.0\.0\.1:\d+, where the job's pods meet, could not be reached .*refused"):
        worker.wait_for_peers(group, timeout_s=0.2)


def test_outside_a_job_the_error_says_where_it_belongs() -> None:
    with pytest.raises(BadInput, match="clrflow run"):
        worker.Group.from_environment(worker.parse(["--nodes=2", "--processes=1"]), {})


@pytest.mark.parametrize(
    ("file", "content"),
    [("memory.events", "low 0\noom 3\noom_kill 2\n"), ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")],
)
def test_processes_killed_for_memory_are_counted_by_the_kernel(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(content)
    assert worker.num_killed_for_memory(tmp_path) == 2
    assert worker.num_killed_for_memory(tmp_path / "elsewhere") == 0


def test_what_workers_say_is_told_from_what_torchrun_says_of_them() -> None:
    output = Output()
    failed = "E1130 15:00 torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: 1) local_rank: 0"
    lines = [
        "clrflow worker start",
        "step 1",
        "clrflow worker error 1: the disk is full",
        failed,
        "a long table",
        "clrflow worker start",
        "step 2",
    ]
    assert [output.read(line) for line in lines] == [None, "step 1", None, None, None, None, "step 2"]
    assert (output.error_code, output.error, output.starts) == (1, "the disk is full", 2)
