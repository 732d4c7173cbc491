"""A launch that can't begin says so before it makes anything."""

from __future__ import annotations

import http.server
from pathlib import Path

import pytest

pytest.importorskip("kubernetes")
from kubernetes import client

from clrflow.errors import ClrflowError
from clrflow.launch.cluster.api import Cluster
from clrflow.launch.cluster.identity import Identity
from clrflow.launch.cluster.launcher import Launch
from clrflow.launch.request import JobRequest
from clrflow.launch.settings import LaunchSettings
from tests.launch.api_server import say, serving


def test_an_account_without_rights_is_told_all_of_them_at_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        asked.append(f"{handler.command} {handler.path}")
        if "selfsubjectaccessreviews" in handler.path:
            say(handler, 200, {"status": {"allowed": False}})
        elif handler.path == "/apis/kubeflow.org/v1":
            say(handler, 200, {"resources": [{"name": "pytorchjobs"}]})
        else:
            say(handler, 403, {"reason": "Forbidden", "message": "no"})

    request = JobRequest(
        what="training", module="m", arguments=(), num_processes=1, run_name="r", step="train", key="k", folder=str(tmp_path), output="o"
    )
    with serving(answer) as server:
        settings = client.Configuration(host=server.url)
        settings.retries = False
        launch = Launch(
            Cluster(client.ApiClient(settings), "team"), Identity(), request, LaunchSettings(launcher="pytorchjob", image="trainer:1")
        )
        with pytest.raises(ClrflowError) as caught:
            launch.run()
    for verb in ("create", "get", "delete"):
        assert f"{verb} pytorchjobs.kubeflow.org" in str(caught.value)
    assert not any(call.startswith("POST /apis/kubeflow.org") for call in asked)
    assert not (tmp_path / "launch").exists()
