"""Runs one job of the benchmark in a process of its own and watches it: time, peak memory of the whole process tree, peak use of the disk.

The peak is the largest sum of resident memory over the tree, sampled, or what the kernel counted for the job's own process where that is more: a
spike between two samples is not lost. Time is measured inside the job, so imports don't count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from clrflow import storage
from clrflow.errors import BadInput, ClrflowError
from clrflow.progress import duration, say

SAMPLE_S = 0.05
DISK_SAMPLE_S = 1.0
LONGEST_S = 6 * 3600
"""A job that takes longer is ended; the longest one of a full run takes about an hour on two cores."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """A finished job."""

    seconds: float
    cpu_seconds: float
    """Of the whole process, its imports included: steadier than wall time on a machine that others use too."""
    peak_bytes: int
    disk_bytes: int
    """By how much the benchmark's folder, in which the job's temporary files lie too, had grown at most."""
    facts: dict[str, Any]
    """What the job returned."""

    @property
    def peak_gb(self) -> float:
        return self.peak_bytes / 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Jobs:
    """The jobs of a benchmark."""

    module: str
    """Whose JOBS holds them by name; job.py says what a job is."""
    code: tuple[str, ...]
    """Folders of the repository whose state the figures depend on, beside how jobs are run."""
    packages: tuple[str, ...] = ()
    """Packages whose versions they depend on."""


def measured(jobs: Jobs, job: str, folder: Path, arguments: Mapping[str, Any], *, threads: int | None = None) -> Measured:
    """Run a job in a new process; ClrflowError with its last lines when it fails.

    `threads` is what the libraries in it are told to have (OMP_NUM_THREADS), None what this process was told: set later, some take no notice.

    The result is kept in `folder`/figures under the job, its arguments and the code's state, so that a long benchmark goes on where it was stopped.
    """
    figures, scratch = folder / "figures", folder / "tmp"
    for place in (figures, scratch):
        place.mkdir(parents=True, exist_ok=True)
    kept = figures / f"{job}-{storage.fingerprint_of(job, arguments, _state_of(jobs))}.json"
    if kept.exists():
        say(f"{job}: found its figures in {kept}")
        return Measured(**json.loads(kept.read_text()))
    shown = ", ".join(f"{name}={value}" for name, value in arguments.items() if isinstance(value, int | float))
    say(f"{job} {shown}: started")
    with tempfile.TemporaryDirectory(dir=scratch) as temporary:
        answer, log = Path(temporary) / "answer.json", Path(temporary) / "log"
        command = [sys.executable, "-m", "benchmarks.job", jobs.module, job, json.dumps(arguments), str(answer)]
        told = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        with log.open("wb") as out:
            # A session of its own: whatever it starts ends with it.
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **told, "TMPDIR": temporary}
            )
            try:
                peak, disk = watch(process, folder)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode or not answer.exists():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise ClrflowError(f"{job}: ended with code {process.returncode}; its last lines:\n{tail}")
        said = json.loads(answer.read_text())
    found = Measured(
        seconds=said["seconds"],
        cpu_seconds=said["cpu_seconds"],
        peak_bytes=max(peak, said["own_peak_bytes"]),
        disk_bytes=disk,
        facts=said["facts"],
    )
    storage.write_json(str(kept), dataclasses.asdict(found))
    say(f"{job} {shown}: {duration(found.seconds)}, peak {found.peak_gb:.2f} GB")
    return found


def watch(process: subprocess.Popen[bytes], folder: Path) -> tuple[int, int]:
    """Wait for a process; returns the peak of its tree's resident bytes and by how much `folder` had grown at most."""
    root, peak, started = psutil.Process(process.pid), 0, time.monotonic()
    before, grown, looked = _size(folder), 0, started
    while process.poll() is None:
        peak = max(peak, sum(_resident(one) for one in _tree(root)))
        now = time.monotonic()
        if now - looked > DISK_SAMPLE_S:
            grown, looked = max(grown, _size(folder) - before), now
        if now - started > LONGEST_S:
            raise ClrflowError(f"process {process.pid}: still running after {LONGEST_S} s, so it was ended; look for what it waits for.")
        time.sleep(SAMPLE_S)
    return peak, max(grown, _size(folder) - before)


def _size(folder: Path) -> int:
    """Bytes that the files below a folder take on the disk; files may go while they are counted."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(place) / name).lstat().st_blocks * 512
    return total


def need_disk(folder: Path, num_bytes: float, what: str) -> None:
    """BadInput when the disk has less room than `what` is about to take."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise BadInput(
            f"{what}: takes about {num_bytes / 1e9:.0f} GB below {folder}, where {free / 1e9:.0f} GB are free; make room, or name a folder on "
            "a larger disk as CLRFLOW_BENCH_WORKSPACE."
        )


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return 0


@functools.cache
def _state_of(jobs: Jobs) -> str:
    """A hash of what is measured, as it was when this process first looked: code, packages, cores."""
    root = Path(__file__).parents[1]
    files = sorted(file for folder in jobs.code for file in (root / folder).rglob("*.py"))
    files += [Path(__file__), Path(__file__).with_name("job.py")]
    contents = [(str(file.relative_to(root)), file.read_text()) for file in files]
    return storage.fingerprint_of(contents, [_version(package) for package in jobs.packages], len(os.sched_getaffinity(0)))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
