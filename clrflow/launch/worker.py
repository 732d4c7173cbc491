"""One pod of a job on a cluster: `python -m clrflow.launch.worker --nodes N --processes P … -- MODULE ARGUMENTS…`.

Checks what the pod was given, waits until its peers can be reached, runs torchrun from what the operator put into the environment, passes
SIGTERM on so that the workers can save, and ends with an exit code that tells the operator and the launcher what to do next:

    0    done                     75   saved; the launcher makes the job again (SIGTERM in a static job, or no launcher followed)
    2    bad input, never again   143  saved after SIGTERM in an elastic job: the operator starts this pod again
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from clrflow import storage
from clrflow.errors import BadInput, ClrflowError
from clrflow.launch import torchrun
from clrflow.launch.lease import LEASE
from clrflow.progress import duration, say

ACCEL = "CLRFLOW_ACCEL"
"""What the image was built for. In one for CUDA the operators can only be tried where a driver is, so each pod does it before torchrun starts."""
LEASE_WAIT_S = 30.0
"""Longest wait for the launcher's lease to show up in the pod; file systems over the network show new files after some seconds."""
TERMINATED = 128 + signal.SIGTERM


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    at = argv.index("--") if "--" in argv else len(argv)
    arguments, program = parse(argv[:at]), argv[at + 1 :]
    try:
        if not program:
            raise BadInput("no module to run; give it after `--`.")
        group = Group.from_environment(arguments, os.environ)
        say(describe(group, arguments))
        check_devices(arguments.efa_devices, Path("/dev/infiniband"))
        check_lease(arguments.lease)
        if arguments.check_operator or os.environ.get(ACCEL) == "cuda":
            check_operators()
        return Pod(group, program, arguments.lease, arguments.start_timeout_s).run()
    except ClrflowError as error:
        say(torchrun.one_line(error.exit_code, error))
        return error.exit_code


def parse(own: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m clrflow.launch.worker", description="One pod of a job; its peers run the same command."
    )
    parser.add_argument("--what", default="job", help="in messages: training")
    parser.add_argument("--nodes", type=int, required=True, help="pods of the job")
    parser.add_argument("--processes", type=int, required=True, help="processes in each pod")
    parser.add_argument("--elastic", action="store_true", help="meet by c10d, and meet again when a pod came back")
    parser.add_argument("--max-restarts", type=int, default=0, help="of an elastic job's processes; PET_MAX_RESTARTS is stronger")
    parser.add_argument("--lease", default="", help="URI of the launcher's lease")
    parser.add_argument("--efa-devices", type=int, default=0, help="EFA devices that the pod must find")
    parser.add_argument("--check-operator", action="store_true", help="run one of fbgemm's before anything starts")
    parser.add_argument("--start-timeout-s", type=float, default=600, help="longest wait for the peers")
    return parser.parse_args(own)


class Group:
    """The job as this pod sees it: who it is among its peers, and where they meet."""

    def __init__(self, *, nodes: int, processes: int, node: int, host: str, port: int, elastic: bool, max_restarts: int, job: str):
        self.nodes, self.processes, self.node, self.host, self.port = nodes, processes, node, host, port
        self.elastic, self.max_restarts, self.job = elastic, max_restarts, job

    @classmethod
    def from_environment(cls, arguments: argparse.Namespace, environ: Mapping[str, str]) -> Group:
        """Read what the training operator (PyTorchJob) or the trainer (TrainJob) sets; raises BadInput where it's missing."""
        job = environ.get("PET_RDZV_ID", "clrflow")
        if arguments.elastic:
            host, _, port = environ.get("PET_RDZV_ENDPOINT", "").rpartition(":")
            node = 0 if host == socket.gethostname() else 1  # who isn't the host only needs to know that
        else:
            host = environ.get("PET_MASTER_ADDR") or environ.get("MASTER_ADDR", "")
            port = environ.get("PET_MASTER_PORT") or environ.get("MASTER_PORT", "")
            node = int(environ.get("PET_NODE_RANK") or environ.get("RANK") or 0)
        if arguments.nodes == 1 and not host:
            host, port = "127.0.0.1", "29400"
        if not host or not port.isdigit():
            raise BadInput(
                "the environment names no place to meet (PET_RDZV_ENDPOINT, or MASTER_ADDR and MASTER_PORT): this program is started in a pod of a "
                "PyTorchJob or TrainJob; on one machine use `clrflow run`."
            )
        return cls(
            nodes=arguments.nodes, processes=arguments.processes, node=node, host=host, port=int(port), elastic=arguments.elastic,
            max_restarts=int(environ.get("PET_MAX_RESTARTS") or arguments.max_restarts), job=job,
        )  # fmt: skip

    join_timeout_s = 3600
    """Longest wait of torchrun for a lost pod to come back; a new node takes minutes, and the launcher watches its own limits."""

    def torchrun_options(self) -> list[str]:
        common = [f"--nproc-per-node={self.processes}"]
        if self.elastic:
            # Ranks are sorted by address: by host name worker 0 is first, so its log is rank 0's.
            return [
                *common, f"--nnodes={self.nodes}:{self.nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.host}:{self.port}",
                f"--rdzv-id={self.job}", f"--local-addr={socket.gethostname()}", f"--max-restarts={self.max_restarts}",
                f"--rdzv-conf=join_timeout={self.join_timeout_s}",
            ]  # fmt: skip
        return [
            *common, f"--nnodes={self.nodes}", f"--node-rank={self.node}", f"--master-addr={self.host}", f"--master-port={self.port}",
            "--max-restarts=0",
        ]  # fmt: skip


class Pod:
    """Runs torchrun, in an elastic job again when the meeting place was lost."""

    def __init__(self, group: Group, program: list[str], lease: str, start_timeout_s: float):
        self.group, self.program, self.lease, self.start_timeout_s = group, program, lease, start_timeout_s
        self.terminated = False
        self.process: subprocess.Popen[str] | None = None

    def run(self) -> int:
        with torchrun.on_sigterm(self._terminate):
            for restarts in range(self.group.max_restarts + 1):
                wait_for_peers(self.group, self.start_timeout_s)
                output = torchrun.Output()
                code = self._torchrun(output)
                if code == 0:
                    return 0
                if not self._meets_again(code, output):
                    break
                say(
                    f"worker: the meeting place {self.group.host} was lost ({code}); meeting again, {restarts + 1} of {self.group.max_restarts}"
                )
        return self._exit_code(code, output)

    def _torchrun(self, output: torchrun.Output) -> int:
        if self.terminated:
            return TERMINATED
        command = [sys.executable, "-m", "torch.distributed.run", *self.group.torchrun_options()]
        # PET_* variables are torchrun's own options in another form; the command line says all, so that nobody has to know both.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
        environment |= {LEASE: self.lease} if self.lease else {}
        # torch 2.14 shares the meeting's store with the workers and then tells its address in the first round only, so a pod that replaces
        # another waits for it in vain: 60 s, then all fail.
        environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if self.group.elastic else {}
        module, *arguments = self.program
        self.process = torchrun.start([*command, *torchrun.workers_command(module, arguments)], environment)
        if self.terminated:
            torchrun.stop(self.process)
        assert self.process.stdout is not None
        stopped = False
        for line in self.process.stdout:
            shown = output.read(line)
            if shown is not None:
                say(shown)
            elif line.startswith((torchrun.WORKER_START, torchrun.WORKER_ERROR)):
                say(line.rstrip())  # for the launcher, which reads them in the pod's log
            ended = output.error_code in torchrun.FINAL or (self.terminated and output.error_code == torchrun.PREEMPTED)
            if ended and not stopped:
                stopped = True
                self.process.terminate()  # all is saved, and an elastic torchrun would start the workers again
        return self.process.wait()

    def _terminate(self) -> None:
        self.terminated = True
        if self.process is not None:
            torchrun.stop(self.process)

    def _meets_again(self, code: int, output: torchrun.Output) -> bool:
        """torchrun ended, but not for its workers: worker 0, which hosts the meeting, went away."""
        return self.group.elastic and not self.terminated and not output.gave_up and not output.error_code and code != 0

    def _exit_code(self, code: int, output: torchrun.Output) -> int:
        if output.error_code == torchrun.BAD_INPUT:
            return torchrun.BAD_INPUT
        if output.error_code == torchrun.ABANDONED:
            return torchrun.PREEMPTED
        if self.terminated:
            return TERMINATED if self.group.elastic else torchrun.PREEMPTED
        if output.error_code:
            return output.error_code
        if killed := num_killed_for_memory():
            say(
                torchrun.one_line(
                    1,
                    f"{killed} process(es) of this pod were killed for memory; give the pod more (launch.resources.memory) or lower "
                    "training.batch_size.",
                )
            )
        return code if 0 < code < 128 else 1


def describe(group: Group, arguments: argparse.Namespace) -> str:
    """One line on what this pod was given, for whoever reads its log."""
    shared = Path("/dev/shm")  # noqa: S108
    shm = os.statvfs(shared).f_frsize * os.statvfs(shared).f_blocks if shared.exists() else 0
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    facts = [
        f"{arguments.what} in pod {socket.gethostname()}",
        f"meets at {group.host}:{group.port}" if group.elastic else f"node {group.node} of {group.nodes}",
        f"{group.processes} process(es)",
        f"shared memory {shm / 2**20:,.0f} MiB",
        f"locked memory {'unlimited' if locked == resource.RLIM_INFINITY else f'{locked // 1024} KiB'}",
    ]
    if arguments.efa_devices:
        facts.append(f"{len(_infiniband(Path('/dev/infiniband')))} EFA device(s)")
    return "worker: " + ", ".join(facts)


def _infiniband(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("uverbs*")) if folder.is_dir() else []


def check_devices(wanted: int, folder: Path) -> None:
    """Raise ClrflowError where fewer EFA devices are in the pod than the job was told it has."""
    found = _infiniband(folder)
    if len(found) < wanted:
        raise ClrflowError(
            f"{len(found)} EFA device(s) in {folder}, but launch.transport=efa needs {wanted}: the EFA device plugin of this node gave none or the "
            "node has another instance type. Check the plugin's pod on this node, or set launch.transport=tcp."
        )


def check_lease(uri: str, wait_s: float = LEASE_WAIT_S) -> None:
    """Raise BadInput where the pod doesn't see what the launcher wrote: then it would not see its inputs either."""
    give_up = time.monotonic() + wait_s
    while uri:
        problem = "it isn't there"
        try:
            if storage.exists(uri):
                return
        except Exception as error:  # whatever a storage driver raises: credentials, DNS, permissions
            problem = f"{type(error).__name__}: {error}"
        if time.monotonic() > give_up:
            raise BadInput(
                f"this pod can't see {uri}, which the launcher wrote ({problem}). The workspace must be the same storage under the same path in the "
                "launcher and in the job's pods: mount its claim by launch.volumes, or use an object store and give its credentials by "
                "launch.secret_env."
            )
        time.sleep(1)


def check_operators() -> None:
    """Try one operator of fbgemm; raises ClrflowError with what it printed."""
    ended = subprocess.run([sys.executable, "-m", "clrflow.training.operators"], capture_output=True, text=True, check=False)
    lines = (ended.stdout + ended.stderr).strip().splitlines()
    if ended.returncode:
        raise ClrflowError(
            f"the image's operators don't work on this node: {' '.join(lines[-3:])}. Check the node's driver and launch.image."
        )
    say(f"worker: {lines[-1] if lines else 'operators work'}")


def wait_for_peers(group: Group, timeout_s: float) -> None:
    """Wait until the host of the meeting has a name and, unless this pod is that host, listens; raises ClrflowError after `timeout_s`."""
    started, said = time.monotonic(), time.monotonic()
    while True:
        try:
            if group.node == 0:
                socket.getaddrinfo(group.host, group.port)
            else:
                socket.create_connection((group.host, group.port), timeout=5).close()
            return
        except OSError as error:
            problem = "it has no address yet" if isinstance(error, socket.gaierror) else f"port {group.port}: {error.strerror or error}"
        waited = time.monotonic() - started
        if waited > timeout_s:
            raise ClrflowError(
                f"{group.host}:{group.port}, where the job's pods meet, could not be reached for {duration(waited)} ({problem}). Look at the first "
                "pod of the job: it isn't running, or a network policy keeps the pods apart."
            )
        if time.monotonic() - said > 15:
            said = time.monotonic()
            say(f"worker: waiting for {group.host} for {duration(waited)}: {problem}")
        time.sleep(0.5)


def num_killed_for_memory(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Processes of this container that the kernel killed because the container's memory was used up."""
    for file in (root / "memory.events", root / "memory" / "memory.oom_control"):
        try:
            counts = dict(line.split() for line in file.read_text().splitlines())
        except (OSError, ValueError):
            continue
        return int(counts.get("oom_kill", 0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
