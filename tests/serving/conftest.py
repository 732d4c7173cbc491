"""One small trained index for all tests of serving, and servers that really run: their own process, their own port."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clrflow.index.publish import publish_version
from clrflow.manifest import Manifest
from clrflow.serving.query import Retriever
from clrflow.steps import execute
from tests.training import world


def export(folder: Path, bits: int) -> tuple[Retriever, Manifest]:
    """Train one epoch and export; the retriever and what train left."""
    run = world.make_run(str(folder), world.config(training__epochs=1, training__serving_table_bits=bits))
    inputs = world.make_inputs(str(folder))
    train = execute("train", run.uri, inputs)
    index = execute("export_index", run.uri, {**{name: inputs[name] for name in ("validate_data", "bootstrap")}, "train": train.uri})
    return Retriever.load(index.manifest.output("index")), train.manifest


@pytest.fixture(scope="session")
def exact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Retriever, Manifest]:
    return export(tmp_path_factory.mktemp("exact"), bits=32)


@pytest.fixture(scope="session")
def retriever(exact: tuple[Retriever, Manifest]) -> Retriever:
    return exact[0]


def publish(workspace: Path, bundle: str, name: str) -> str:
    """Make a bundle the current version of a workspace; the version's name."""
    published = workspace / "published"
    return publish_version(str(published), {"": bundle}, fingerprint=name * 8, train="t", champion="").version


class Server:
    """A running `python -m clrflow.serving`."""

    def __init__(self, process: subprocess.Popen[str], port: int, log: Path):
        self.process, self.port, self._log = process, port, log

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any, dict[str, str]]:
        """Status, decoded body and headers; a body that isn't bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, data)
            response = connection.getresponse()
            text = response.read().decode()
            is_json = response.headers["content-type"] == "application/json"
            return response.status, json.loads(text) if is_json else text, dict(response.headers)

    def predict(self, *instances: Any) -> tuple[int, Any, dict[str, str]]:
        return self.request("POST", "/v1/models/clrflow:predict", {"instances": list(instances)})

    def metric(self, name: str) -> float:
        """The value of a series as /metrics shows it; 0 when it isn't there."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.request("GET", "/metrics")[1], re.MULTILINE)
        return float(found[1]) if found else 0.0

    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, holds: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}: {self.log()}"
            assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s. {self.log()}"
            time.sleep(0.05)

    def is_ready(self) -> bool:
        try:
            return self.request("GET", "/readyz")[0] == 200
        except ConnectionError:
            return False


def start(log: Path, index: str, *flags: str, command: tuple[str, ...] = ("-m", "clrflow.serving", "--index")) -> Server:
    """Start a server on a free port; returns once it listens, which is before its index is loaded."""
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, *command, index, "--port", "0", *flags],
            stdout=stream, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    server = Server(process, 0, log)
    server.wait_for(lambda: "listening on" in server.log(), "the server listens")
    found = re.search(r"listening on \S+:(\d+);", server.log())
    assert found is not None
    server.port = int(found[1])
    return server


@contextlib.contextmanager
def running(log: Path, index: str, *flags: str, **more: Any) -> Iterator[Server]:
    """A server that has loaded its index, ended whatever happens."""
    server = start(log, index, *flags, **more)
    try:
        server.wait_for(server.is_ready, "the server is ready")
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="session")
def server(retriever: Retriever, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the small index; tests that change what is served start their own."""
    with running(tmp_path_factory.mktemp("server") / "log", retriever.bundle.uri, "--max-instances", "8", "--max-items", "2000") as found:
        yield found
