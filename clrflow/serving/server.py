"""Runs the server: takes the port, loads the index beside it, serves until SIGTERM, leaves with 0.

    serve(serve_settings(index="my/workspace", port=8080))

Next: app.py (HTTP), protocol.py (bodies), live.py (the index and its swaps), settings.py (every bound).
"""

from __future__ import annotations

import os
import signal
import socket
import sys

import uvicorn

from clrflow.errors import BadInput
from clrflow.progress import say
from clrflow.serving.settings import ServeSettings

KEEP_ALIVE_S = 75
"""Above the idle time of usual proxies (60 s), so that they, not the server, close an idle connection: the other way round loses requests."""
MAX_CONNECTIONS = 512
"""Open connections; one more is answered with 503. Each may hold a body of max_body_bytes, so this bounds memory too."""


def serve(settings: ServeSettings) -> None:
    """Serve until SIGTERM or Ctrl-C; the main thread only.

    Raises BadInput when the address can't be listened on or the URI holds no index, ClrflowError when the index can't be used.
    """
    listener = _listen(settings)
    # These import torch and faiss, which takes seconds: an address that can't be had is told before.
    from clrflow.serving.app import App
    from clrflow.serving.live import LiveIndex
    from clrflow.serving.metrics import Metrics

    metrics = Metrics()
    index = LiveIndex(settings.index, settings.poll_s, metrics)
    app = App(settings, index, metrics)
    server = uvicorn.Server(
        uvicorn.Config(
            app.asgi(), http="h11", loop="asyncio", ws="none", lifespan="off", log_level="warning", access_log=False, server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=settings.grace_s, limit_concurrency=MAX_CONNECTIONS,
        )
    )  # fmt: skip

    def leave(*_: object) -> None:
        server.should_exit = True

    # uvicorn has handlers of its own while it runs, and raises the signal once more when it has ended: these make that an end with 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    host, port = listener.getsockname()[:2]
    say(f"serve: listening on {f'[{host}]' if ':' in host else host}:{port}; loading {settings.index}")
    index.start(on_failure=leave)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        app.pool.shutdown(wait=False, cancel_futures=True)
    if index.failure is not None:
        raise index.failure
    say("serve: stopped")
    if not index.stop(timeout_s=1.0):
        # A load of minutes can't be left half-way, and the interpreter's own end would wait for it or crash in its libraries.
        sys.stdout.flush()
        os._exit(0)


def _listen(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=MAX_CONNECTIONS)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # the rest repeats the address
        raise BadInput(
            f"host={settings.host} port={settings.port}: can't listen there ({reason}); "
            "choose a free port (0 takes one) and an address of this machine."
        ) from None
