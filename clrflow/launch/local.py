"""torchrun on this machine: starts the job's processes, streams what they print, and turns their end into a result or an error."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from clrflow.errors import BadInput, ClrflowError
from clrflow.launch import torchrun
from clrflow.progress import say


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_torchrun(
    module: str, arguments: Sequence[str], *, num_processes: int, what: str, again: str = "it goes on from the last checkpoint"
) -> None:
    """Run `python -m module arguments` in `num_processes` processes with a loopback rendezvous and wait for them.

    `again` tells what happens when the same is run again.

    Raises BadInput or ClrflowError with the last lines that the job printed; SIGTERM is passed on, so that the job can save.
    """
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={num_processes}", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--max-restarts=0", *torchrun.workers_command(module, arguments),
    ]  # fmt: skip
    # One thread a process: on busy cores torch's threads spin while they wait and cost three times the time.
    environment = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, "PYTHONUNBUFFERED": "1"}
    process = torchrun.start(command, environment)
    output = torchrun.Output()
    try:
        with torchrun.on_sigterm(lambda: torchrun.stop(process)):
            assert process.stdout is not None
            for line in process.stdout:
                if (shown := output.read(line)) is not None:
                    say(shown)
            code = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if output.error:
        raise BadInput(output.error) if output.error_code == torchrun.BAD_INPUT else ClrflowError(output.error)
    if code:
        shown = "\n  ".join(output.last)
        raise ClrflowError(f"{what} ended with exit code {code}; the last it said:\n  {shown}\nRun the same command again: {again}.")
