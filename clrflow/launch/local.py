"""torchrun on this machine: starts the job's processes, streams what they print, and turns their end into a result or an error.

Processes die with their parent: when the launcher is killed, however hard, torchrun and its workers go too, so that a job started
again never writes beside an orphan.
"""

from __future__ import annotations

import collections
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from clrflow.errors import BadInput, ClrflowError
from clrflow.progress import say

_PR_SET_PDEATHSIG = 1
LAST_LINES = 15
BAD_INPUT, PREEMPTED = 2, 75
"""Exit codes by which a worker tells what happened: as the command line's own, and EX_TEMPFAIL for `saved, run again`."""


LAUNCHER = "CLRFLOW_LAUNCHER_PID"
"""Environment variable by which a worker knows who started its torchrun."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends; only Linux can, elsewhere nothing happens.

    The kernel tells of deaths from now on only, so a worker calls this before its imports, which take seconds; and where the launcher died
    even earlier, nobody waits for this process and it ends here.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    launcher = os.environ.get(LAUNCHER)
    if launcher and not Path(f"/proc/{launcher}").exists():
        os._exit(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_torchrun(module: str, arguments: Sequence[str], *, num_processes: int, what: str) -> None:
    """Run `python -m module arguments` in `num_processes` processes with a loopback rendezvous and wait for them.

    Raises BadInput or ClrflowError with the last lines that the job printed; SIGTERM is passed on, so that the job can save.
    """
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={num_processes}", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--max-restarts=0", "--no-python", "--", sys.executable, "-u", "-m", module, *arguments,
    ]  # fmt: skip
    # One thread a process: on busy cores torch's threads spin while they wait and cost three times the time.
    environment = {
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        LAUNCHER: str(os.getpid()),
    }
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, preexec_fn=die_with_parent
    )
    last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
    worker_error = ""
    agent_failed = False
    previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        assert process.stdout is not None
        for line in process.stdout:
            line = line.rstrip()
            agent_failed = agent_failed or ("distributed/elastic" in line and "failed (exitcode" in line)
            if agent_failed or not line or _is_noise(line):
                continue  # from here on torchrun tells at length that a worker failed; what the worker said matters
            if line.startswith(WORKER_ERROR):
                worker_error = worker_error or line.removeprefix(WORKER_ERROR)
                continue
            last.append(line)
            say(line)
        code = process.wait()
    finally:
        signal.signal(signal.SIGTERM, previous)
        if process.poll() is None:
            process.kill()
            process.wait()
    if worker_error:
        kind, _, message = worker_error.partition(": ")
        raise BadInput(message) if kind == str(BAD_INPUT) else ClrflowError(message)
    if code:
        shown = "\n  ".join(last)
        raise ClrflowError(
            f"{what} ended with exit code {code}; the last it said:\n  {shown}\nRun the same command again: it goes on from the last checkpoint."
        )


WORKER_ERROR = "clrflow worker error "
"""How a worker names its end in its output: this, an exit code, a colon, the message in one line."""


def _is_noise(line: str) -> bool:
    """What libraries print at each start and nobody can act on."""
    return any(part in line for part in ("FutureWarning", "is_fx_tracing", "DistributedDataParallel(", "Setting OMP_NUM_THREADS"))
