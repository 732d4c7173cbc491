"""The v2beta1 REST API of Kubeflow Pipelines: JSON in, JSON out, every failure told with its remedy.

Not kfp.Client: it reads a context file of the user, prints links, and its generated base ends in an AttributeError where TLS fails. Here a call
says which credentials were refused, repeats what may be repeated while the server is away, and never shows a token.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3

from clrflow.errors import BadInput, ClrflowError
from clrflow.progress import say
from pipelines.kubeflow.credentials import TOKEN_ENV, Credentials

API = "/apis/v2beta1"
PATIENCE_S = 15.0
"""How long one call goes on asking a server that is away or busy, before the first answer; following a run is far more patient."""
_BUSY = (429, 500, 502, 503, 504)
_PAGE = 100


class ApiError(ClrflowError):
    """The server refused a call; carries the HTTP status."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class Unreachable(ClrflowError):
    """No answer, or none of Kubeflow Pipelines, within the patience."""


class Client:
    """One Kubeflow Pipelines server, as one user sees it; `namespace` is "" where the installation has a single user."""

    def __init__(
        self, endpoint: str, credentials: Credentials, *, namespace: str = "", ca_file: str = "", timeout_s: float = 60,
        patience_s: float = PATIENCE_S, tell: Callable[[str], None] = say,
    ):  # fmt: skip
        parts = urllib.parse.urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
            raise BadInput(
                f"endpoint {_without_user(endpoint)!r}: give the base URL of Kubeflow Pipelines, without user or query, e.g. "
                "http://localhost:8888 (kubectl port-forward) or https://host/pipeline."
            )
        if ca_file and not Path(ca_file).is_file():
            raise BadInput(f"--ca {ca_file!r} does not exist; give the PEM file of the authority that signed the server's certificate.")
        self.endpoint, self.credentials, self.namespace = endpoint.rstrip("/"), credentials, namespace
        self.patience_s, self.tell = patience_s, tell
        try:
            trust = ssl.create_default_context(cafile=ca_file or None)
        except (ssl.SSLError, OSError) as error:
            raise BadInput(f"--ca {ca_file!r} can't be used ({error}); give a PEM file with certificates.") from None
        self._pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=10, read=timeout_s), ssl_context=trust)
        if credentials.token() and parts.scheme == "http" and not _is_near(parts.hostname):
            tell(f"note: {self.endpoint} is not encrypted, and the token travels with every call; use https where others share the network")

    def link(self, *parts: str) -> str:
        """Address of a page of the UI, as far as the API's endpoint tells it."""
        return "/".join([f"{self.endpoint}/#", *parts])

    def healthy(self) -> dict[str, Any]:
        """The server's own description; raises a telling error where the endpoint is something else."""
        answer = self.call("GET", "/healthz")
        return answer if isinstance(answer, dict) else {}

    def listed(self, path: str, key: str, query: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """All objects of a list, page by page; `key` as the API spells it, camel case or not."""
        camel = "".join(part.capitalize() if index else part for index, part in enumerate(key.split("_")))
        token = ""
        while True:
            answer = self.call("GET", path, query={**(query or {}), "page_size": _PAGE, "page_token": token})
            yield from answer.get(key) or answer.get(camel) or []
            token = answer.get("next_page_token") or answer.get("nextPageToken") or ""
            if not token:
                return

    def create(self, path: str, body: Mapping[str, Any], find: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
        """POST what must exist once. After a failure that leaves open whether it was made, `find` looks before it is sent again."""
        give_up = time.monotonic() + self.patience_s
        wait = 0.5
        while True:
            try:
                made: dict[str, Any] = self.call("POST", path, body=body, patience_s=0)
                return made
            except (Unreachable, ApiError) as error:
                open_end = isinstance(error, Unreachable) or error.status in _BUSY
                found = find() if open_end or (isinstance(error, ApiError) and error.status == 409) else None
                if found is not None:
                    return found
                if not open_end or time.monotonic() > give_up:
                    raise
            time.sleep(wait)
            wait = min(wait * 2, 5.0)

    def call(
        self, method: str, path: str, *, body: Any = None, query: Mapping[str, Any] | None = None,
        upload: tuple[str, bytes] | None = None, patience_s: float | None = None,
    ) -> Any:  # fmt: skip
        """One request; returns the decoded answer. While the server is away or busy it is sent again for `patience_s` (0: sent once)."""
        patience = self.patience_s if patience_s is None else patience_s
        give_up = time.monotonic() + patience
        url = f"{self.endpoint}{API}{path}"
        if query:
            url += "?" + urllib.parse.urlencode({key: value for key, value in query.items() if value not in ("", None)})
        wait, said = 0.5, False
        while True:
            failure: ClrflowError
            try:
                response = self._send(method, url, body, upload)
            except urllib3.exceptions.SSLError as error:
                raise self._tls(error) from None
            except urllib3.exceptions.HTTPError as error:
                if isinstance(reason := getattr(error, "reason", None), ssl.SSLError):
                    raise self._tls(reason) from None
                failure = self._away(error, patience)
            else:
                if response.status not in _BUSY:
                    return self._decoded(response, f"{method} {API}{path}")
                failure = self._refused(response, f"{method} {API}{path}")
            if time.monotonic() > give_up or patience <= 0:
                raise failure
            if not said:
                said = True
                self.tell(f"Kubeflow Pipelines: {failure}\nasking again for up to {patience:.0f} s")
            time.sleep(wait)
            wait = min(wait * 2, 5.0)

    def _send(self, method: str, url: str, body: Any, upload: tuple[str, bytes] | None) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json"}
        if token := self.credentials.token():
            headers["Authorization"] = f"Bearer {token}"
        if upload is not None:
            name, data = upload
            return self._pool.request(method, url, headers=headers, fields={"uploadfile": (name, data, "application/octet-stream")})
        if body is not None:
            headers["Content-Type"] = "application/json"
        return self._pool.request(method, url, headers=headers, body=None if body is None else json.dumps(body).encode())

    def _decoded(self, response: urllib3.BaseHTTPResponse, doing: str) -> Any:
        if response.status >= 300:
            raise self._refused(response, doing)
        try:
            return json.loads(response.data or b"{}")
        except ValueError:
            kind = response.headers.get("content-type", "no content type")
            raise BadInput(
                f"endpoint {self.endpoint}: {doing} was answered with {kind}, not JSON: this is no API of Kubeflow Pipelines, or a login page "
                f"stands before it ({self.credentials.source} used). Give the base URL below which {API} lies, and a token with --token-file."
            ) from None

    def _refused(self, response: urllib3.BaseHTTPResponse, doing: str) -> ClrflowError:
        status = response.status
        try:
            answer = json.loads(response.data or b"{}")
        except ValueError:
            answer = {}
        # The API answers {"error": …, "code": …, "message": …, "details": […]}; a proxy before it, whatever it likes.
        said = (answer.get("message") or answer.get("error")) if isinstance(answer, dict) else ""
        said = str(said or "").strip()[:500]
        who = self.credentials.source
        if status == 401 or 300 <= status < 400:
            return ApiError(
                f"{self.endpoint} wants to know who asks ({status}), and {who} did not do. Give a token that it accepts with --token-file FILE "
                f"or {TOKEN_ENV}; in a pod, project one for the audience pipelines.kubeflow.org.", status,
            )  # fmt: skip
        if status == 403:
            where = f"namespace {self.namespace}" if self.namespace else "this installation"
            return ApiError(
                f"{doing}: not allowed in {where} with {who}{f': {said}' if said else ''}. Give --namespace where it may, or have it bound to a "
                "role there.", status,
            )  # fmt: skip
        if status == 404 and not (isinstance(answer, dict) and "code" in answer):
            return BadInput(
                f"endpoint {self.endpoint}: there is no {API} below it (404); give the base URL of Kubeflow Pipelines, e.g. "
                "http://localhost:8888 or https://host/pipeline."
            )
        return ApiError(f"{doing}: Kubeflow Pipelines answered {status}{f': {said}' if said else ''}", status)

    def _away(self, error: urllib3.exceptions.HTTPError, patience_s: float) -> Unreachable:
        if isinstance(error, urllib3.exceptions.ReadTimeoutError):
            why, what = "it took the request and did not answer in time", "see whether ml-pipeline is overloaded"
        elif isinstance(error, urllib3.exceptions.NameResolutionError):
            why, what = "its name is not known here", "check the URL's host"
        elif isinstance(error, urllib3.exceptions.ConnectTimeoutError) and not isinstance(error, urllib3.exceptions.NewConnectionError):
            why, what = "no connection came about in 10 s", "check host, port and firewalls"
        else:
            cause = error.__cause__ or error.__context__
            why, what = str(cause or error), "check host and port, and that the server or the port-forward runs"
        tried = f" (asked for {patience_s:.0f} s)" if patience_s else ""
        return Unreachable(f"endpoint {self.endpoint} can't be reached{tried}: {why}; {what}.")

    def _tls(self, error: Exception) -> BadInput:
        return BadInput(
            f"endpoint {self.endpoint}: no trusted TLS connection ({error}); give the signing authority's certificate with --ca FILE, and check "
            "that host and scheme are right."
        )


def _is_near(host: str) -> bool:
    """Loopback or the cluster's own network, where Kubeflow itself speaks plain HTTP."""
    return host in ("localhost", "127.0.0.1", "::1") or "." not in host or host.endswith((".svc", ".svc.cluster.local", ".localhost"))


def _without_user(endpoint: str) -> str:
    """The URL without a user's name and password, which belong into no message."""
    head, at, tail = endpoint.rpartition("@")
    return f"{head.partition('//')[0]}//…@{tail}" if at else endpoint
