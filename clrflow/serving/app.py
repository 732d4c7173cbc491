"""The HTTP face of a live index: KServe's v1 predict, v1 and v2 health, plain health, Prometheus metrics.

The event loop only moves bytes; a request is parsed, computed and encoded in one of `threads` worker threads. Every answer but /metrics is
JSON, an error as {"error": "what, which value, why, what to do"}.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from clrflow.errors import BadInput
from clrflow.serving.live import LiveIndex, Served
from clrflow.serving.metrics import CONTENT_TYPE, Metrics
from clrflow.serving.protocol import answer, encode, parse_request
from clrflow.serving.settings import ServeSettings

VERSION_HEADER = "x-clrflow-index-version"
DRAINED = 16
"""A body that is too large is read up to this many times the limit and thrown away: a caller that still sends would else see a broken
connection in place of the 413."""


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str, retry: bool = False):
        super().__init__(message)
        self.status, self.message, self.retry = status, message, retry


class App:
    """The handlers, and what they share."""

    def __init__(self, settings: ServeSettings, index: LiveIndex, metrics: Metrics):
        self.settings, self.index, self.metrics = settings, index, metrics
        self.waiting = 0
        self.pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="predict", initializer=_one_core)

    def asgi(self) -> Starlette:
        """The application that a server runs."""
        return Starlette(
            routes=[
                Route("/healthz", self.live),
                Route("/readyz", self.ready),
                Route("/metrics", self.show_metrics),
                Route("/v1/models", self.list_models),
                Route("/v1/models/{name}:predict", self.predict, methods=["GET", "POST"]),
                Route("/v1/models/{name}", self.model),
                Route("/v2/health/live", self.live),
                Route("/v2/health/ready", self.ready),
                Route("/v2/models/{name}/ready", self.model),
            ],
            exception_handlers={HTTPException: _http_error, Exception: _unexpected},
        )

    async def live(self, request: Request) -> Response:
        return _json({"live": True})

    async def ready(self, request: Request) -> Response:
        served = self.index.current
        return _json({"ready": served is not None, "version": served.version if served else None}, 200 if served else 503)

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.exposition(), media_type=CONTENT_TYPE)

    async def list_models(self, request: Request) -> Response:
        return _json({"models": [self.settings.model_name]})

    async def model(self, request: Request) -> Response:
        try:
            self._check_name(request)
        except Refused as refused:
            return _refusal(refused)
        ready = self.index.current is not None
        return _json({"name": self.settings.model_name, "ready": ready}, 200 if ready else 503)

    async def predict(self, request: Request) -> Response:
        started = time.perf_counter()
        status = 500  # stays so when something unforeseen is raised
        try:
            response = await self._predict(request)
            status = response.status_code
            return response
        except Refused as refused:
            status = refused.status
            return _refusal(refused)
        finally:
            self.metrics.requests.labels(str(status)).inc()
            self.metrics.seconds.observe(time.perf_counter() - started)

    async def _predict(self, request: Request) -> Response:
        if request.method == "GET":
            raise Refused(405, "predict takes POST, not GET; send the instances as the body of a POST.")
        self._check_name(request)
        body = await self._body(request)
        served = self.index.current
        if served is None:
            raise Refused(503, "the index is still being loaded; ask again when /readyz answers 200.", retry=True)
        if self.waiting >= self.settings.max_waiting:
            raise Refused(
                503, f"{self.waiting} requests are waiting already (max_waiting); send fewer at once, or add replicas.", retry=True
            )
        self.waiting += 1
        self.metrics.waiting.set(self.waiting)
        try:
            encoded = await asyncio.get_running_loop().run_in_executor(self.pool, self._compute, served, body)
        except BadInput as error:
            raise Refused(400, str(error)) from None
        finally:
            self.waiting -= 1
            self.metrics.waiting.set(self.waiting)
        return Response(encoded, media_type="application/json", headers={VERSION_HEADER: served.version})

    def _compute(self, served: Served, body: bytes) -> bytes:
        instances = parse_request(body, self.settings)
        for instance in instances:
            self.metrics.conditions.observe(len(instance.conditions))
        return encode({"predictions": answer(served.retriever, instances)})

    async def _body(self, request: Request) -> bytes:
        """The body, within its bounds of size and time; raises Refused."""
        limit, parts, size = self.settings.max_body_bytes, [], 0
        try:
            async with asyncio.timeout(self.settings.body_timeout_s):
                async for part in request.stream():
                    size += len(part)
                    if size <= limit:
                        parts.append(part)
                    elif size > DRAINED * limit:
                        break
        except TimeoutError:
            raise Refused(
                408, f"the body did not arrive within {self.settings.body_timeout_s:g} s (body_timeout_s); send it again."
            ) from None
        except ClientDisconnect:
            raise Refused(499, "the caller left before its body had arrived.") from None
        if size > limit:
            raise Refused(413, f"the body has more than {limit} bytes (max_body_bytes); split the request.")
        return b"".join(parts)

    def _check_name(self, request: Request) -> None:
        name = request.path_params["name"]
        if name != self.settings.model_name:
            raise Refused(404, f"there is no model {name[:100]!r} here; this server has {self.settings.model_name!r}.")


def _one_core() -> None:
    """A thread computes on one core: parallel requests fill the others, and no thread spins while it waits for its helpers."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers, "application/json")


def _refusal(refused: Refused) -> Response:
    return _json({"error": refused.message}, refused.status, {"retry-after": "1"} if refused.retry else None)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = {404: "there is nothing at this path", 405: f"{request.method} is not allowed at this path"}.get(status, "the request failed")
    return _json(
        {"error": f"{text}; predict is POST /v1/models/NAME:predict, health GET /healthz and /readyz, metrics GET /metrics."}, status
    )


async def _unexpected(request: Request, error: Exception) -> Response:
    """The traceback goes to the log, never to the caller."""
    return _json({"error": "the server failed on this request; its log says why."}, 500)
