"""The server as callers and Kubernetes see it: a real process, real HTTP on a free port."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clrflow.serving.query import Condition, Retriever
from tests.serving.conftest import Server, running, start
from tests.training import world

PREDICT = "/v1/models/clrflow:predict"
ASKED = {"user": 3, "conditions": ["interest:7", "board:3"], "k": 5}


def half_sent(server: Server, body: bytes) -> socket.socket:
    """A predict request whose last byte is still missing."""
    caller = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    caller.sendall(f"POST {PREDICT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body[:-1])
    return caller


def answer_on(caller: socket.socket) -> tuple[int, Any]:
    response = http.client.HTTPResponse(caller)
    response.begin()
    return response.status, json.loads(response.read())


def test_a_prediction_equals_the_retrievers_answer_with_exact_ids(server: Server, retriever: Retriever) -> None:
    status, body, headers = server.predict(ASKED, {"user": 2**53 + 1})
    assert status == 200
    known, unknown = body["predictions"]
    expected = retriever.search(3, [Condition("interest", 7), Condition("board", 3)], 5)
    assert [one["items"] for one in known["by_condition"]] == [one.item_ids.tolist() for one in expected]
    assert set(known["items"]) <= set(world.ITEM_IDS.tolist())
    assert min(known["items"]) >= 2**60
    assert (known["known_user"], unknown["known_user"]) == (True, False)
    assert len(unknown["items"]) == 10
    assert headers["x-clrflow-index-version"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/healthz", {"live": True}),
        ("/v2/health/live", {"live": True}),
        ("/v1/models", {"models": ["clrflow"]}),
        ("/v1/models/clrflow", {"name": "clrflow", "ready": True}),
        ("/v2/models/clrflow/ready", {"name": "clrflow", "ready": True}),
    ],
)
def test_health_is_told_as_kserve_asks_for_it(server: Server, path: str, body: Any) -> None:
    assert server.request("GET", path)[:2] == (200, body)


@pytest.mark.parametrize("path", ["/readyz", "/v2/health/ready"])
def test_a_ready_server_names_its_version(server: Server, path: str) -> None:
    status, body, _ = server.request("GET", path)
    assert status == 200
    assert body["ready"] is True
    assert body["version"] in server.log()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "why"),
    [
        ("POST", PREDICT, b"no json", 400, "isn't JSON that can be read"),
        ("POST", PREDICT, {"instances": [{"user": "\ud800"}]}, 400, "must be an integer"),
        ("POST", PREDICT, {"instances": [{"user": 1, "conditions": ["\ud800:5"]}]}, 400, "write none, interest:ID"),
        ("POST", PREDICT, {"instances": [{"user": 1}] * 9}, 400, "instances has 9 entries"),
        ("POST", PREDICT, {"instances": [{"user": 1, "k": 1000, "conditions": ["none"] * 3}]}, 400, "ask for 3000 items"),
        ("POST", PREDICT, {"instances": [{"user": 1, "conditions": ["board:777"]}]}, 400, "instances[0]: condition board:777: the index knows"),
        ("POST", "/v1/models/other:predict", {"instances": [{"user": 1}]}, 404, "there is no model 'other' here; this server has 'clrflow'"),
        ("GET", "/v1/models/other", None, 404, "there is no model 'other'"),
        ("GET", "/v2/models/other/ready", None, 404, "there is no model 'other'"),
        ("GET", "/nothing", None, 404, "there is nothing at this path"),
        ("GET", PREDICT, None, 405, "predict takes POST"),
        ("DELETE", PREDICT, None, 405, "DELETE is not allowed"),
        ("POST", PREDICT, b"x" * (1 << 20) + b"x", 413, "more than 1048576 bytes"),
        ("POST", PREDICT, b"x" * (5 << 20), 413, "more than 1048576 bytes"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_with_one_message(server: Server, method: str, path: str, body: Any, status: int, why: str) -> None:
    found, told, _ = server.request(method, path, body)
    assert found == status
    assert list(told) == ["error"]
    assert why in told["error"]


def test_a_body_without_a_length_is_bounded_too(server: Server) -> None:
    with contextlib.closing(server.connect()) as connection:
        connection.request("POST", PREDICT, iter([b"x" * 65536] * 17), encode_chunked=True, headers={"transfer-encoding": "chunked"})
        assert connection.getresponse().status == 413


def test_eight_callers_at_once_get_what_each_alone_would_get(server: Server) -> None:
    asked = [
        {"user": user, "k": 7, "conditions": conditions}
        for user in range(world.NUM_USERS)
        for conditions in (["interest:7", f"board:{user}", "none"], [f"item:{world.ITEM_IDS[user]}", "interest:9"])
    ]
    alone = [server.predict(one)[1] for one in asked]
    with concurrent.futures.ThreadPoolExecutor(8) as callers:
        together = list(callers.map(lambda one: server.predict(one)[:2], asked * 4))
    assert together == [(200, one) for one in alone * 4]


def test_requests_conditions_and_the_version_are_counted(server: Server) -> None:
    names = ['clrflow_requests_total{status="200"}', 'clrflow_requests_total{status="400"}', "clrflow_request_seconds_count"]
    names += ["clrflow_conditions_per_instance_count", "clrflow_conditions_per_instance_sum"]
    before = [server.metric(name) for name in names]
    server.predict(ASKED, {"user": 1})
    server.predict({"user": None})
    assert [server.metric(name) - earlier for name, earlier in zip(names, before, strict=True)] == [1, 1, 2, 2, 3]
    version = server.request("GET", "/readyz")[1]["version"]
    assert server.metric(f'clrflow_index_info{{version="{version}"}}') == 1
    assert server.metric("clrflow_index_items") == world.NUM_ITEMS
    assert server.metric("clrflow_index_is_current") == 1
    assert server.metric("clrflow_requests_in_flight") == 0


def test_nothing_about_a_caller_is_in_the_log(server: Server) -> None:
    server.predict({"user": 123454321, "conditions": ["interest:7"]})
    server.request("POST", PREDICT, b"123454321")
    assert "123454321" not in server.log()


def test_a_slow_body_and_a_full_queue_are_answered_and_sigterm_lets_a_running_request_finish(retriever: Retriever, tmp_path: Path) -> None:
    flags = ("--body-timeout-s", "2", "--max-waiting", "1", "--threads", "1", "--grace-s", "15")
    with running(tmp_path / "log", retriever.bundle.uri, *flags) as server:
        with half_sent(server, b"{}") as caller:
            status, body = answer_on(caller)
        assert (status, "within 2 s (body_timeout_s)" in body["error"]) == (408, True)

        heavy = {"user": 3, "conditions": ["interest:7", "interest:9"] * 32, "k": 40}
        with concurrent.futures.ThreadPoolExecutor(8) as callers:
            answers = list(callers.map(lambda _: server.predict(heavy), range(40)))
        assert {status for status, _, _ in answers} == {200, 503}
        refused = next(answer for answer in answers if answer[0] == 503)
        assert "max_waiting" in refused[1]["error"]
        assert refused[2]["retry-after"] == "1"

        body = json.dumps({"instances": [ASKED]}).encode()
        with half_sent(server, body) as caller:
            time.sleep(0.3)  # the server has read the headers
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(lambda: not accepts(server), "new callers are turned away", 10)
            caller.sendall(body[-1:])
            assert answer_on(caller)[0] == 200
        assert server.process.wait(timeout=10) == 0
        assert time.monotonic() - started < 10
        assert "serve: stopped" in server.log()
        assert "Traceback" not in server.log()


def accepts(server: Server) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_server_that_still_loads_is_alive_but_not_ready_and_leaves_at_sigterm(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    os.mkfifo(tmp_path / "index" / "index.json")  # reading it blocks, as a slow bucket does
    server = start(tmp_path / "log", str(tmp_path / "index"))
    try:
        server.wait_for(lambda: accepts(server), "the server accepts")
        assert server.request("GET", "/healthz")[0] == 200
        assert server.request("GET", "/readyz")[0] == 503
        assert server.request("GET", "/v1/models/clrflow")[:2] == (503, {"name": "clrflow", "ready": False})
        status, body, headers = server.predict(ASKED)
        assert (status, headers["retry-after"]) == (503, "1")
        assert "still being loaded" in body["error"]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=15) == 0
    finally:
        server.process.kill()
        server.process.wait()


def test_the_command_line_serves_too_and_needs_neither_a_home_nor_a_place_for_temporary_files(
    retriever: Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/nonexistent")
    with running(tmp_path / "log", retriever.bundle.uri, "--model-name", "films", command=("-m", "pipelines.cli", "serve")) as server:
        assert server.request("POST", "/v1/models/films:predict", {"instances": [ASKED]})[0] == 200
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=15) == 0


def ended(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "clrflow.serving", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return found.returncode, found.stderr


def test_what_can_not_be_served_ends_the_server_with_one_message(retriever: Retriever, tmp_path: Path) -> None:
    copy = tmp_path / "damaged"
    subprocess.run(["cp", "-r", retriever.bundle.uri, copy], check=True)
    (copy / "items.parquet").write_bytes(b"else")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        cases = {
            ("--index", str(tmp_path), "--port", "0"): (2, "holds no index"),
            ("--index", str(copy), "--port", "0"): (1, "items.parquet is damaged"),
            ("--index", str(copy), "--port", port): (2, rf"port={port}: can't listen there \(Address already in use\)"),
            ("--index", str(copy), "--port", "99999", "--threads", "many"): (2, "port='99999'.*threads='many'"),
        }
        with concurrent.futures.ThreadPoolExecutor(2) as both:
            results = list(both.map(lambda arguments: ended(*arguments), cases))
    for (code, said), (expected, why) in zip(results, cases.values(), strict=True):
        assert code == expected, said
        assert re.search(why, said), said
        assert said.startswith("error: ")
        assert "Traceback" not in said


def test_the_server_needs_nothing_of_kubeflow_training_or_the_command_line() -> None:
    unwanted = "kfp kubernetes torchrec fbgemm_gpu tensordict duckdb ibis typer rich matplotlib jinja2 implicit scipy pipelines components"
    code = f"import sys, clrflow.serving.server, clrflow.serving.app; print(sorted(set({unwanted.split()}) & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "[]"
