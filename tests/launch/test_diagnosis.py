"""Why a job failed: the pod that broke is named, not the ones that lost their peer, with the kubelet's reason, its last lines and a remedy."""

from __future__ import annotations

import http.server
from typing import Any

import pytest
from kubernetes import client

from clrflow.errors import BadInput, ClrflowError
from clrflow.launch.cluster.api import Cluster
from clrflow.launch.cluster.diagnosis import JobFailed, explain
from clrflow.launch.torchrun import Output
from tests.launch.api_server import serving

PEER_LOST = "RuntimeError: Read error: Connection reset by peer."


def failed(name: str, *, code: int = 1, reason: str = "Error", at: str = "2026-01-31T10:00:00Z", message: str = "") -> dict[str, Any]:
    ended = {"exitCode": code, "reason": reason, "finishedAt": at, "message": message}
    return {
        "metadata": {"name": name},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "pytorch", "state": {"terminated": ended}}]},
    }


def explained(pods: list[dict[str, Any]], logs: dict[str, str], said: Output | None = None) -> ClrflowError:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        log = logs.get(handler.path.split("/")[6], "").encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(log)))
        handler.end_headers()
        handler.wfile.write(log)

    with serving(answer) as server:
        settings = client.Configuration(host=server.url)
        settings.retries = False
        api = Cluster(client.ApiClient(settings), "team")
        return explain(api, "pytorch", pods, what="training", job="train-a", said=said or Output())


def test_the_rank_that_broke_is_blamed_and_not_those_that_lost_it() -> None:
    pods = [failed("a-master-0"), failed("a-worker-0"), failed("a-worker-1")]
    logs = {"a-master-0": PEER_LOST, "a-worker-0": "KeyError: 'shard 7'", "a-worker-1": PEER_LOST}
    error = explained(pods, logs)
    assert isinstance(error, JobFailed)
    assert error.restartable
    assert "pod a-worker-0 of job train-a ended with exit code 1" in str(error)
    assert "KeyError: 'shard 7'" in str(error)


def test_of_pods_that_broke_by_themselves_the_first_is_blamed() -> None:
    late = failed("a-master-0", at="2026-01-31T10:00:09Z")
    error = explained([late, failed("a-worker-0")], {"a-master-0": "second", "a-worker-0": "first"})
    assert "pod a-worker-0" in str(error)


def test_a_pod_killed_for_memory_is_blamed_although_it_said_nothing() -> None:
    pods = [failed("a-master-0"), failed("a-worker-0", code=137, reason="OOMKilled", at="2026-01-31T10:00:01Z")]
    error = explained(pods, {"a-master-0": PEER_LOST})
    assert "pod a-worker-0 of job train-a ended with exit code 137 (OOMKilled)" in str(error)
    assert "raise launch.resources.memory" in str(error)


def test_bad_input_that_any_rank_found_stays_bad_input() -> None:
    logs = {"a-master-0": PEER_LOST, "a-worker-0": "clrflow worker error 2: items: 3 ids are unknown"}
    error = explained([failed("a-master-0"), failed("a-worker-0", code=2)], logs)
    assert isinstance(error, BadInput)
    assert str(error) == "items: 3 ids are unknown"


def test_an_evicted_pod_has_no_exit_code_but_the_kubelets_message() -> None:
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
    error = explained([{"metadata": {"name": "a-master-0"}, "status": status}], {})
    assert "no exit code (Evicted): The node was low on resource: ephemeral-storage." in str(error)


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        (failed("a-master-0", code=128, reason="StartError", message='exec: "python": not found'), 'exec: "python": not found'),
        ({"metadata": {"name": "a-master-0"}, "status": {"phase": "Failed", "reason": "DeadlineExceeded"}}, "launch.deadline_s"),
        (failed("a-master-0", code=2), "exit code 2"),
    ],
)
def test_what_would_happen_again_is_not_tried_again(pod: dict[str, Any], says: str) -> None:
    error = explained([pod], {})
    assert isinstance(error, JobFailed)
    assert not error.restartable
    assert says in str(error)


def test_when_all_pods_are_gone_what_the_first_one_said_is_still_told() -> None:
    said = Output()
    said.read("step 7")
    error = explained([], {}, said)
    assert "its pods are gone" in str(error)
    assert "step 7" in str(error)
