"""An API server for tests: HTTP on loopback, answers as a test says."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Server:
    """Answers on loopback by `answer(handler)`, which writes a whole answer itself; remembers tokens."""

    def __init__(self, answer: Callable[[http.server.BaseHTTPRequestHandler], None], port: int = 0):
        outer = self
        self.tokens: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.tokens.append(self.headers.get("Authorization", ""))
                answer(self)

            do_GET = do_POST = do_DELETE = handle_one  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


def say(handler: http.server.BaseHTTPRequestHandler, status: int, body: Any) -> None:
    data = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


@contextlib.contextmanager
def serving(answer: Callable[[http.server.BaseHTTPRequestHandler], None], port: int = 0) -> Iterator[Server]:
    server = Server(answer, port)
    try:
        yield server
    finally:
        server.close()
