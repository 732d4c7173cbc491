"""A real S3 server on loopback for tests, and a proxy before it that fails as networks and busy stores do."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clrflow.launch.local import free_port

BUCKET = "clrflow"
KEYS = {"writer": "writer-key", "reader": "reader-key", "second": "second-key"}
"""Access key of each identity: writer and second may do all, reader reads and lists."""
RIGHTS = {"writer": ["Admin"], "second": ["Admin"], "reader": ["Read", "List"]}
START_S = 60.0


def secret_of(identity: str) -> str:
    return f"{identity}-secret-a8f5"


def environment(identity: str, endpoint: str) -> dict[str, str]:
    """Variables by which a process is known to the store at `endpoint`, and by none of this machine's other configuration."""
    return {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": KEYS[identity], "AWS_SECRET_ACCESS_KEY": secret_of(identity),
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }  # fmt: skip


class ObjectStoreServer:
    """One server with one bucket; everything it writes lies in `folder`, which is removed at the end."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}

    def __enter__(self) -> ObjectStoreServer:
        self.folder.mkdir(parents=True)
        identities = [
            {"name": name, "credentials": [{"accessKey": key, "secretKey": secret_of(name)}], "actions": RIGHTS[name]}
            for name, key in KEYS.items()
        ]
        config = self.folder / "identities.json"
        config.write_text(json.dumps({"identities": identities}))
        ports = self._ports = {
            name: free_port() for name in ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port")
        }
        ports |= {"filer.port.grpc": free_port(), "s3.port": self.port, "s3.port.grpc": free_port()}
        command = [
            str(Path(sys.executable).with_name("weed")), "server", f"-dir={self.folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            "-master.telemetry=false", "-master.volumeSizeLimitMB=256", "-master.electionTimeout=1s", "-volume.max=100",
            "-volume.preStopSeconds=0", "-filer", f"-filer.localSocket={self.folder}/filer.sock", "-s3", f"-s3.config={config}",
            f"-s3.localSocket={self.folder}/s3.sock", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false",
            *(f"-{name}={port}" for name, port in ports.items()),
        ]  # fmt: skip
        with (self.folder / "log.txt").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder)
        try:
            self._make_bucket()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is not None:
            process.kill()  # its data go anyway, and a gentle end takes many seconds
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        for port in self._ports.values():
            for socket_file in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108  # for these it takes no other place
                socket_file.unlink(missing_ok=True)

    def _make_bucket(self) -> None:
        from clrflow.storage.s3 import ObjectStore

        deadline = time.monotonic() + START_S
        while True:
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the S3 server did not start: " + (self.folder / "log.txt").read_text(errors="replace")[-2000:])
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                break
            time.sleep(0.05)
        fs = ObjectStore(
            key=KEYS["writer"], secret=secret_of("writer"), endpoint_url=self.endpoint, client_kwargs={"region_name": "us-east-1"},
            skip_instance_cache=True,
        )  # fmt: skip
        fs.call_s3("create_bucket", Bucket=BUCKET)
        # The first object makes the server find room for the bucket, which takes longest.
        while True:
            with contextlib.suppress(Exception):
                fs.pipe_file(f"{BUCKET}/ready", b"x")
                return
            if time.monotonic() > deadline:
                raise RuntimeError("the S3 server takes no object: " + (self.folder / "log.txt").read_text(errors="replace")[-2000:])
            time.sleep(0.1)


Fault = Callable[["FaultyProxy", "_Handler"], bool]
"""Given a request it may answer it in its own way (True), else it is passed on."""


class FaultyProxy:
    """Passes requests on to a server, and fails some of them: `faults` are asked in turn, each until it has failed as often as it should."""

    def __init__(self, endpoint: str):
        self.target = endpoint.removeprefix("http://")
        self.requests: list[tuple[str, str, str]] = []
        """(method, path, access key) of everything that was asked."""
        self.faults: list[Fault] = []
        self.ended = threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.proxy = self  # type: ignore[attr-defined]
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def count(self, method: str, part: str = "") -> int:
        """Requests with this method whose path holds `part`."""
        return sum(asked == method and part in path for asked, path, _ in self.requests)

    def fail(self, times: int, *, method: str = "GET", part: str = "", status: int = 503, code: str = "SlowDown") -> None:
        """Answer so many requests with an error of the store."""

        def fault(handler: _Handler) -> None:
            handler.answer(status, f"<Error><Code>{code}</Code><Message>told to fail</Message></Error>".encode())

        self._add(times, method, part, fault)

    def cut(self, times: int, after_bytes: int, *, method: str = "GET", part: str = "") -> None:
        """Reset the connection after so many bytes of the body."""
        self._add(times, method, part, lambda handler: handler.pass_on(cut_after=after_bytes))

    def lose_answer(self, times: int, *, method: str = "PUT", part: str = "") -> None:
        """Pass the request on and reset the connection instead of answering."""
        self._add(times, method, part, lambda handler: handler.pass_on(cut_after=-1))

    def hold(self, part: str, *, method: str = "PUT") -> threading.Event:
        """Let the next such request wait, until the proxy ends; the event says that it came."""
        came = threading.Event()

        def fault(handler: _Handler) -> None:
            came.set()
            self.ended.wait(60)
            handler.reset()

        self._add(1, method, part, fault)
        return came

    def refuse(self, access_key: str, code: str = "ExpiredToken") -> None:
        """From now on refuse an access key, as a store does when temporary credentials have expired."""

        def fault(proxy: FaultyProxy, handler: _Handler) -> bool:
            if handler.access_key != access_key:
                return False
            body = b"" if handler.command == "HEAD" else f"<Error><Code>{code}</Code><Message>expired</Message></Error>".encode()
            handler.answer(400, body)
            return True

        self.faults.append(fault)

    def _add(self, times: int, method: str, part: str, do: Callable[[_Handler], None]) -> None:
        left = [times]
        lock = threading.Lock()

        def fault(proxy: FaultyProxy, handler: _Handler) -> bool:
            with lock:
                if handler.command != method or part not in handler.path or not left[0]:
                    return False
                left[0] -= 1
            do(handler)
            return True

        self.faults.append(fault)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def handle_any(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        proxy: FaultyProxy = self.server.proxy
        proxy.requests.append((self.command, self.path, self.access_key))
        if not any(fault(proxy, self) for fault in list(proxy.faults)):
            self.pass_on()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

    @property
    def access_key(self) -> str:
        return self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Type": "application/xml", "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def pass_on(self, cut_after: int | None = None) -> None:
        """cut_after: bytes of the body after which the connection is reset; -1 before the answer, None never."""
        connection = http.client.HTTPConnection(self.server.proxy.target, timeout=30)
        try:
            # Host is signed, so it stays what the client was told.
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(self.body)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if cut_after == -1:
            self.reset()
            return
        self.send_response_only(answer.status)
        lowered = {name.lower() for name, _ in answer.getheaders()}
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        if "content-length" not in lowered and answer.status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if cut_after is None else body[:cut_after])
        if cut_after is not None:
            self.wfile.flush()
            time.sleep(0.05)  # let what was sent arrive before the reset
            self.reset()

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: tests read `requests`."""


_known: dict[str, str] = {}
"""Variables with which the connections of this process were made."""


def use(variables: Mapping[str, str], set_variable: Callable[[str, str], None]) -> None:
    """Make this process known to a store: sets the variables and forgets connections that were made with others."""
    from clrflow.storage.s3 import ObjectStore

    for name, value in variables.items():
        set_variable(name, value)
    now = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    if now != _known:
        _known.clear()
        _known.update(now)
        ObjectStore.clear_instance_cache()
