"""What a job's status claims and what is true: a cluster whose answers a test writes, as real operators have given them.

What a real cluster does of its own accord is tested on one (tests/cluster).
"""

from __future__ import annotations

import http.server
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")
from kubernetes import client

from clrflow.errors import BadInput
from clrflow.launch.cluster import follow
from clrflow.launch.cluster.api import Cluster
from clrflow.launch.cluster.diagnosis import JobFailed
from clrflow.launch.cluster.pytorchjob import PyTorchJobBackend
from clrflow.launch.lease import Lease, place
from clrflow.launch.request import JobRequest
from clrflow.launch.settings import LaunchSettings
from tests.launch.api_server import Server, say, serving

LAG_S = 0.6


class Scene:
    """The cluster as the launcher sees it: a job with conditions, its pods by name, rank 0's log."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.conditions: list[str] | None = ["Running"]
        """None: the job is gone."""
        self.pods: dict[str, dict[str, Any]] = {}
        self.log: list[str] = []
        self.deleted = False
        self.request = JobRequest(
            what="training", module="m", arguments=(), num_processes=2, run_name="r", step="train", key="k", folder=str(folder),
            output=str(folder / "out.json"),
        )  # fmt: skip

    def pod(self, name: str, phase: str = "Running", uid: str = "1", **container: Any) -> None:
        labels = {"training.kubeflow.org/replica-index": name[-1]}
        status = {"phase": phase, "containerStatuses": [{"name": "pytorch", "restartCount": 0, "state": container}]}
        self.pods[name] = {
            "metadata": {"name": name, "uid": uid, "labels": labels},
            "spec": {"nodeName": "n", "containers": []},
            "status": status,
        }

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        if handler.command == "DELETE":
            self.deleted = True
            say(handler, 200, {})
        elif path.endswith("/log"):
            self._stream(handler)
        elif path.endswith("/pods"):
            say(handler, 200, {"items": list(self.pods.values())})
        elif path.endswith("/events"):
            say(handler, 200, {"items": []})
        elif self.conditions is None:
            say(handler, 404, {"reason": "NotFound"})
        else:
            say(handler, 200, {"status": {"conditions": [{"type": kind, "status": "True"} for kind in self.conditions]}})

    def _stream(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        lines = [f"2026-01-31T10:00:{at:02d}.000000000Z {line}" for at, line in enumerate(self.log)]
        since = handler.path.partition("sinceTime=")[2].partition("&")[0].replace("%3A", ":").rstrip("Z")
        data = "".join(f"{line}\n" for line in lines if line >= since).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def follow(self, server: Server, **settings: Any) -> follow.Follower:
        configuration = client.Configuration(host=server.url)
        configuration.retries = False
        chosen = LaunchSettings.model_validate({"launcher": "pytorchjob", "image": "trainer:1", "nodes": 2, "max_restarts": 1, **settings})
        lease = Lease(place(str(self.folder)), chosen.lease_s)
        return follow.Follower(Cluster(client.ApiClient(configuration), "team"), PyTorchJobBackend(), "job", self.request, chosen, lease)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    for name, seconds in (("POLL_S", 0.05), ("LAG_S", LAG_S), ("DONE_S", 0.2), ("OUTPUT_S", 0.3)):
        monkeypatch.setattr(follow, name, seconds)
    monkeypatch.setattr("clrflow.launch.cluster.logs.REOPEN_S", 0.05)
    made = Scene(tmp_path)
    for name in ("job-worker-0", "job-worker-1"):
        made.pod(name)
    return made


@pytest.fixture
def server(scene: Scene) -> Iterator[Server]:
    with serving(scene.answer) as made:
        yield made


def failure(follower: follow.Follower) -> JobFailed:
    with pytest.raises(JobFailed) as caught:
        follower.follow()
    return caught.value


def test_success_is_the_output_and_not_the_status(scene: Scene, server: Server) -> None:
    scene.conditions = ["Succeeded"]
    for name in list(scene.pods):
        scene.pod(name, "Succeeded")
    error = failure(scene.follow(server))
    assert "says that it succeeded, but" in str(error)
    assert not error.restartable
    (scene.folder / "out.json").write_text("{}")
    scene.follow(server).follow()


def test_a_job_called_failed_after_all_work_has_succeeded(scene: Scene, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    scene.conditions = ["Failed"]
    (scene.folder / "out.json").write_text("{}")
    scene.follow(server).follow()
    assert "its output is whole" in capsys.readouterr().out


def test_pods_that_run_on_after_success_are_freed(scene: Scene, server: Server) -> None:
    scene.conditions = ["Succeeded"]
    (scene.folder / "out.json").write_text("{}")
    scene.follow(server).follow()
    assert scene.deleted


def test_restarting_for_ever_with_no_running_pod_is_a_failure(scene: Scene, server: Server) -> None:
    scene.conditions = ["Restarting"]
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-31T10:00:00Z"}
    for name in list(scene.pods):
        scene.pod(name, "Failed", terminated=ended)
    assert "exit code 1" in str(failure(scene.follow(server, elastic=True)))


def test_pods_that_succeeded_are_believed_where_the_operator_is_away(scene: Scene, server: Server) -> None:
    for name in list(scene.pods):
        scene.pod(name, "Succeeded")
    (scene.folder / "out.json").write_text("{}")
    scene.follow(server).follow()


def test_a_silent_job_stalls_and_may_be_tried_again(scene: Scene, server: Server) -> None:
    scene.log = ["step 7 of 100"]
    started = time.monotonic()
    error = failure(scene.follow(server, stall_timeout_s=0.5))
    assert time.monotonic() - started >= 0.5
    assert "launch.stall_timeout_s=0.5" in str(error)
    assert "step 7 of 100" in str(error)
    assert error.restartable


def test_a_job_that_asked_for_efa_and_got_sockets_fails(scene: Scene, server: Server) -> None:
    scene.log = ["a:1:1 [0] NCCL INFO Using network Socket"]
    error = failure(scene.follow(server, instance="p5.48xlarge", transport="efa"))
    assert "launch.transport=efa, but NCCL took sockets" in str(error)
    assert not error.restartable


def test_a_job_that_was_deleted_from_outside_is_not_made_again(scene: Scene, server: Server) -> None:
    scene.conditions = None
    error = failure(scene.follow(server))
    assert "was deleted while it was followed" in str(error)
    assert not error.restartable


def test_bad_input_ends_the_job_at_once_whatever_the_operator_thinks(scene: Scene, server: Server) -> None:
    scene.log = ["clrflow worker error 2: items: 3 ids are unknown"]
    with pytest.raises(BadInput, match="items: 3 ids are unknown"):
        scene.follow(server, elastic=True).follow()


def test_a_lost_pod_of_an_elastic_job_counts_as_one_restart_though_its_processes_restart_too(scene: Scene, server: Server) -> None:
    scene.log = ["clrflow worker start", "step 1"]
    follower = scene.follow(server, elastic=True, max_restarts=1)
    follower._look()
    scene.pod("job-worker-1", uid="2")
    scene.log += ["clrflow worker start", "step 2"]
    deadline = time.monotonic() + 10
    while follower.log.output.starts < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    follower._look()
    assert follower.restarts == 1
    scene.pod("job-worker-1", uid="3")
    with pytest.raises(JobFailed, match=r"restarted more than launch\.max_restarts=1 times(.|\n)*step 2"):
        follower._look()


def test_the_deadline_counts_what_earlier_launchers_used(scene: Scene, server: Server) -> None:
    (scene.folder / "launch").mkdir()
    (scene.folder / "launch" / "lease.json").write_text(json.dumps({"beat": 4, "used_s": 3600, "restarts": 0}))
    follower = scene.follow(server, deadline_s=3000)
    follower.lease.take(goes_on=True)
    assert "launch.deadline_s=3000" in str(failure(follower))
