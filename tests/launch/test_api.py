"""The launcher's calls against a server that misbehaves as API servers do: away, busy, refusing, its streams cut."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

pytest.importorskip("kubernetes")
from clrflow.errors import BadInput, ClrflowError
from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.logs import LogStream
from clrflow.launch.local import free_port
from tests.launch.api_server import Server, say, serving


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes the kubeconfig that `Cluster.connect` finds: server and token."""
    file = tmp_path / "kubeconfig"
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))

    def write(server: str, token: str) -> None:
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        }  # fmt: skip
        file.write_text(yaml.safe_dump(content))

    return write


def test_without_a_cluster_it_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(BadInput, match=r"set KUBECONFIG .* launch\.launcher=local"):
        Cluster.connect()


def test_the_namespace_is_that_of_the_context_unless_one_is_given(kubeconfig: Callable[[str, str], None]) -> None:
    kubeconfig("http://127.0.0.1:1", "secret")
    assert Cluster.connect().core("pods", "a", "log") == "/api/v1/namespaces/team/pods/a/log"
    assert Cluster.connect("other").core("pods") == "/api/v1/namespaces/other/pods"


def test_a_refusal_carries_the_servers_own_words(kubeconfig: Callable[[str, str], None]) -> None:
    refusal = {"reason": "Forbidden", "message": "pods is forbidden: User x cannot list"}
    with serving(lambda handler: say(handler, 403, refusal)) as server:
        kubeconfig(server.url, "secret")
        with pytest.raises(ApiError, match="403 Forbidden: pods is forbidden: User x cannot list") as caught:
            Cluster.connect().call("GET", "/api/v1/pods")
    assert caught.value.status == 403
    assert "secret" not in str(caught.value)


def test_a_rotated_token_is_read_again(kubeconfig: Callable[[str, str], None]) -> None:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        fresh = handler.headers["Authorization"] == "Bearer new"
        say(handler, 200 if fresh else 401, {"fresh": True} if fresh else {"reason": "Unauthorized"})

    with serving(answer) as server:
        kubeconfig(server.url, "old")
        cluster = Cluster.connect()
        kubeconfig(server.url, "new")
        assert cluster.call("GET", "/version") == {"fresh": True}
    assert server.tokens == ["Bearer old", "Bearer new"]


def test_a_server_that_is_away_is_waited_for(kubeconfig: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    kubeconfig(f"http://127.0.0.1:{port}", "t")
    cluster = Cluster.connect()
    came = threading.Event()
    server: list[Server] = []

    def come_late() -> None:
        time.sleep(1.2)
        server.append(Server(lambda handler: say(handler, 200, {"up": True}), port))
        came.set()

    threading.Thread(target=come_late).start()
    assert cluster.call("GET", "/version", patience_s=30) == {"up": True}
    assert came.is_set()
    server[0].close()
    assert capsys.readouterr().out.count("asking again") == 1


def test_patience_ends_with_the_servers_address(kubeconfig: Callable[[str, str], None]) -> None:
    kubeconfig("http://127.0.0.1:1", "t")
    with pytest.raises(ClrflowError, match=r"http://127\.0\.0\.1:1 could not be reached"):
        Cluster.connect().call("GET", "/version", patience_s=0)


def test_a_log_that_breaks_off_is_shown_once_and_whole(kubeconfig: Callable[[str, str], None]) -> None:
    log = [f"2026-01-31T00:00:0{at // 2}.{at % 2}00000000Z line {at}" for at in range(8)]
    asked: list[str] = []

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        since = handler.path.partition("sinceTime=")[2].partition("&")[0].replace("%3A", ":").rstrip("Z")
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        first = len(asked) == 1
        for line in (line for line in log if line >= since):
            # The first connection breaks in the middle of the fifth line.
            part = line[:-3] if first and line is log[4] else line + "\n"
            handler.wfile.write(f"{len(part):x}\r\n{part}\r\n".encode())
            if first and line is log[4]:
                handler.close_connection = True
                return
        handler.wfile.write(b"0\r\n\r\n")

    shown: list[str] = []
    with serving(answer) as server:
        kubeconfig(server.url, "t")
        stream = LogStream(Cluster.connect(), "pytorch", show=shown.append, on_line=lambda line: None)
        stream.follow({"metadata": {"name": "a", "uid": "1"}})
        deadline = time.monotonic() + 20
        while len(shown) < 8:
            assert time.monotonic() < deadline, shown
            time.sleep(0.05)
        stream.finish()
    assert shown == [f"line {at}" for at in range(8)]
    assert "sinceTime=2026-01-31T00%3A00%3A01Z" in asked[1]


def test_a_server_that_has_just_come_back_and_knows_no_roles_yet_is_asked_again(kubeconfig: Callable[[str, str], None]) -> None:
    forbidden = {"reason": "Forbidden", "message": "User x cannot get pods"}
    answers = [(503, {}), (403, forbidden), (200, {"items": []}), (403, forbidden)]
    with serving(lambda handler: say(handler, *answers.pop(0))) as server:
        kubeconfig(server.url, "secret")
        cluster = Cluster.connect()
        assert cluster.call("GET", "/api/v1/pods") == {"items": []}
        cluster._last_trouble -= 60  # a minute later a refusal is one
        with pytest.raises(ApiError, match="403 Forbidden"):
            cluster.call("GET", "/api/v1/pods")
