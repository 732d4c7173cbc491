"""The launcher as a step runs it: a process of its own, which tests read, stop and kill.

`python -m tests.cluster.launching FILE` is that process; FILE says which job, or which training, to launch where.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clrflow.errors import ClrflowError
from clrflow.launch import launch
from clrflow.launch.request import JobRequest
from clrflow.launch.settings import LaunchSettings

if TYPE_CHECKING:  # a launcher's process has no use for pytest
    from tests.cluster.conftest import Images, TestCluster, Workspace

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "jobs"
CODE_IN_IMAGE = "/opt/clrflow/code"
"""On the image's own PYTHONPATH, which that of a job replaces."""


class Process:
    """A running launcher."""

    def __init__(self, what: dict[str, Any], folder: Path, environment: dict[str, str]):
        name = uuid.uuid4().hex[:8]
        file, self.log = folder / f"{name}.json", folder / f"{name}.log"
        file.write_text(json.dumps(what))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "tests.cluster.launching", str(file)],
                cwd=ROOT, env={**os.environ, **environment}, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, within_s: float = 120) -> int:
        """Its exit code."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher has not ended after {within_s} s; it said:\n{self.said}") from None

    def wait_for(self, text: str, within_s: float = 90) -> None:
        deadline = time.monotonic() + within_s
        while text not in self.said:
            assert self.process.poll() is None, (
                f"the launcher ended ({self.process.returncode}) before it said {text!r}; it said:\n{self.said}"
            )
            assert time.monotonic() < deadline, f"the launcher didn't say {text!r} in {within_s} s; it said:\n{self.said}"
            time.sleep(0.1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate_as_kubeflow_does(self) -> None:
        """SIGTERM, and the end of the process a second later, whatever it is doing."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.kill()


@dataclasses.dataclass(kw_only=True)
class Launching:
    """Makes requests and settings for one namespace and its workspace, and starts launchers."""

    cluster: TestCluster
    images: Images
    workspace: Workspace
    kubeconfig: Path | None = None
    """Another one than the cluster's."""
    started: list[Process] = dataclasses.field(default_factory=list)

    def settings(self, **changes: Any) -> dict[str, Any]:
        folder = str(self.workspace.folder)
        base: dict[str, Any] = {
            "launcher": "pytorchjob", "image": self.images.trainer, "namespace": self.workspace.namespace, "service_account": "default",
            "volumes": [{"claim": self.workspace.claim, "path": folder}], "env": {"PYTHONPATH": f"{CODE_IN_IMAGE}:{folder}/programs"},
            "max_restarts": 0, "provision_timeout_s": 60, "deadline_s": 600, "grace_s": 30,
        }  # fmt: skip
        return base | changes

    def job(self, module: str, *arguments: str, key: str = "", num_processes: int = 1) -> dict[str, Any]:
        """A request for one of the programs in tests/cluster/jobs; `OUTPUT` among the arguments stands for the output's place."""
        folder = self.workspace.folder / "steps" / (key or uuid.uuid4().hex[:8])
        folder.mkdir(parents=True, exist_ok=True)
        output = str(folder / "output.json")
        return {
            "what": "counting", "module": module, "arguments": [argument.replace("OUTPUT", output) for argument in arguments],
            "num_processes": num_processes, "run_name": "test", "step": "train", "key": folder.name, "folder": str(folder), "output": output,
            "stale": [output],
        }  # fmt: skip

    def start(self, request: dict[str, Any], settings: dict[str, Any], **environment: str) -> Process:
        return self._start({"request": request, "settings": settings}, environment)

    def train(self, run: str, inputs: dict[str, str], **environment: str) -> Process:
        return self._start({"run": run, "inputs": inputs}, environment)

    def _start(self, what: dict[str, Any], environment: dict[str, str]) -> Process:
        made = Process(what, self.workspace.folder, {"KUBECONFIG": str(self.kubeconfig or self.cluster.kubeconfig), **environment})
        self.started.append(made)
        return made

    def prepare(self) -> None:
        """Put the programs where pods find them."""
        shutil.copytree(PROGRAMS, self.workspace.folder / "programs", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))

    def close(self) -> None:
        for process in self.started:
            if process.process.poll() is None:
                process.kill()

    def jobs(self) -> list[dict[str, Any]]:
        listed = self.cluster.custom.list_namespaced_custom_object("kubeflow.org", "v1", self.workspace.namespace, "pytorchjobs")
        found: list[dict[str, Any]] = listed["items"]
        return found

    def pods(self) -> list[Any]:
        return list(self.cluster.core.list_namespaced_pod(self.workspace.namespace).items)


def main() -> int:
    what = json.loads(Path(sys.argv[1]).read_text())
    try:
        if "run" in what:
            from clrflow.steps import execute

            execute("train", what["run"], what["inputs"])
        else:
            request = {name: tuple(value) if isinstance(value, list) else value for name, value in what["request"].items()}
            launch(JobRequest(**request), LaunchSettings.model_validate(what["settings"]))
    except ClrflowError as error:
        print(f"error: {error}", flush=True)
        return error.exit_code
    print("the launcher is done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
