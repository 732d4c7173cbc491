"""torchrun as a child process: what its workers say, how they say why they ended, and a stop that leaves them time to save.

Shared by local.py (a step starts torchrun itself) and worker.py (each pod of a job does). Processes die with their parent: when the launcher
is killed, however hard, torchrun and its workers go too, so that a job started again never writes beside an orphan.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
LAST_LINES = 15
BAD_INPUT, PREEMPTED, ABANDONED = 2, 75, 76
"""By which a worker tells what happened: as the command line's own; EX_TEMPFAIL for `saved, run again`; saved because no launcher follows."""
FINAL = (BAD_INPUT, ABANDONED)
"""Ends after which the workers must not be started again."""
LINGER_S = 20.0
WORKER_ERROR = "clrflow worker error "
"""How a worker names its end in its output: this, a code, a colon, the message in one line."""
WORKER_START = "clrflow worker start"
"""Printed by the first process of each node when it starts, so that restarts can be counted from the log."""
LAUNCHER = "CLRFLOW_LAUNCHER_PID"
"""Environment variable by which a worker knows who started its torchrun."""


def worker_begins() -> None:
    """To be called first by a job's module, before imports that take seconds: who is killed meanwhile leaves no orphan."""
    die_with_parent()
    if LAUNCHER in os.environ and os.environ.get("LOCAL_RANK", "0") == "0":
        print(WORKER_START, flush=True)


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


def one_line(code: int, message: object) -> str:
    """A worker's error as it is printed."""
    return f"{WORKER_ERROR}{code}: {' '.join(str(message).split())}"


def tell_end(code: int, message: object, *, told_to_stop: bool = False) -> None:
    """Print a worker's error. Where it must not be started again here (FINAL, or `told_to_stop` by SIGTERM), it stays until it is stopped.

    An elastic torchrun starts workers again a tenth of a second after one has ended, sooner than whoever reads this line can stop it.
    """
    print(one_line(code, message), flush=True)
    if (told_to_stop or code in FINAL) and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(LINGER_S)


class Output:
    """Reads the lines of torchrun and its workers: which ones a person should see, and what they tell of the end."""

    def __init__(self) -> None:
        self.last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self.error_code, self.error = 0, ""
        """The first worker's error, as `one_line` wrote it."""
        self.starts = 0
        self.gave_up = False
        """torchrun ended because its workers failed once too often; without it torchrun itself had trouble, e.g. its meeting place was lost."""
        self._workers_failed = False

    def read(self, line: str) -> str | None:
        """The line as it should be shown, or None."""
        line = line.rstrip()
        if line.startswith(WORKER_START):
            self.starts += 1
            self._workers_failed = False
            return None
        if line.startswith(WORKER_ERROR):
            if not self.error:
                code, _, self.error = line.removeprefix(WORKER_ERROR).partition(": ")
                self.error_code = int(code) if code.isdigit() else 1
            return None
        self.gave_up = self.gave_up or "ChildFailedError" in line
        self._workers_failed = self._workers_failed or ("distributed/elastic" in line and "failed (exitcode" in line)
        # From there on torchrun tells at length that a worker failed; what the worker said matters.
        if self._workers_failed or not line or _is_noise(line):
            return None
        self.last.append(line)
        return line


def start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start torchrun, its output on one pipe; it dies with this process."""
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env={**environment, LAUNCHER: str(os.getpid())}, preexec_fn=die_with_parent,
    )  # fmt: skip


def workers_command(module: str, arguments: Sequence[str]) -> list[str]:
    """What torchrun is told to run in each process."""
    return ["--no-python", "--", sys.executable, "-u", "-m", module, *arguments]


def stop(process: subprocess.Popen[str]) -> None:
    """Ask the workers to save and end, then torchrun.

    torchrun gives its workers 30 s after its own SIGTERM and kills them then, which is too short to save large tables; and where it may
    restart workers it would take their end for a failure. So the workers are told first, and torchrun once they are gone.
    """
    workers = _children(process.pid)
    if not workers:
        process.terminate()
        return
    _signal_all(workers)

    def end_torchrun() -> None:
        while any(Path(f"/proc/{pid}").exists() for pid in workers) and process.poll() is None:
            time.sleep(0.1)
        time.sleep(0.5)  # torchrun may end by itself now, with a code that says more
        with contextlib.suppress(ProcessLookupError):
            process.terminate()

    threading.Thread(target=end_torchrun, daemon=True).start()


@contextlib.contextmanager
def on_sigterm(handle: Callable[[], None]) -> Iterator[None]:
    """Call `handle` on SIGTERM; outside the main thread, where Python takes no handlers, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: handle())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # no such file elsewhere than on Linux
        return []


def _signal_all(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _is_noise(line: str) -> bool:
    """What libraries print at each start and nobody can act on."""
    return any(part in line for part in ("FutureWarning", "is_fx_tracing", "DistributedDataParallel(", "Setting OMP_NUM_THREADS"))
