"""The Kubernetes API as the launcher uses it: plain objects in and out, patient with a server that restarts and a token that rotates.

Next: launcher.py, which follows a job through this.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes import client, config

from clrflow.errors import BadInput, ClrflowError
from clrflow.progress import say

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
PATIENCE_S = 300.0
"""How long a call goes on asking an API server that can't be reached or is busy; a control plane's upgrade takes a minute or two."""
TRANSIENT = (429, 500, 502, 503, 504)
SETTLING_S = 30.0
"""A server that has just come back refuses everybody with 403 until it has read the roles; so long after an outage that is not believed."""


class ApiError(ClrflowError):
    """The API server refused a call; carries the HTTP status and the server's own reason."""

    def __init__(self, status: int, reason: str, message: str, doing: str):
        super().__init__(f"{doing}: the API server answered {status} {reason}: {message}")
        self.status, self.reason, self.server_message = status, reason, message


class Cluster:
    """One namespace of one cluster. Calls raise ApiError; those that only read or may be repeated wait for a server that is away."""

    def __init__(self, api: client.ApiClient, namespace: str, context: str = "", reconnect: Callable[[], client.ApiClient] | None = None):
        self.api, self.namespace, self.context = api, namespace, context
        self._reconnect = reconnect or (lambda: client.ApiClient(api.configuration))
        self._last_trouble = -math.inf
        """When a call last had to be repeated (time.monotonic())."""

    @classmethod
    def connect(cls, namespace: str = "") -> Cluster:
        """With the pod's service account, else with a kubeconfig; `namespace` "" means theirs. Raises BadInput where there is neither."""
        try:
            api = _in_cluster()
        except config.ConfigException:
            try:
                _, active = config.list_kube_config_contexts(os.environ.get("KUBECONFIG"))
                api = _from_kubeconfig()
            except (config.ConfigException, OSError, yaml.YAMLError) as error:
                raise BadInput(
                    f"no cluster to talk to: this process runs in no pod, and there is no usable kubeconfig ({error}); set KUBECONFIG to a file "
                    "that names the cluster, or run with launch.launcher=local."
                ) from None
            return cls(api, namespace or active["context"].get("namespace", "") or "default", active["name"], _from_kubeconfig)
        of_pod = NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else ""
        return cls(api, namespace or of_pod or "default", "in-cluster", _in_cluster)

    def another(self) -> Cluster:
        """The same with connections of its own, for a signal's handler or another thread."""
        return Cluster(self._reconnect(), self.namespace, self.context, self._reconnect)

    def call(
        self, method: str, path: str, *, body: Any = None, query: Mapping[str, Any] | None = None, content_type: str = "application/json",
        timeout_s: float = 30, patience_s: float = PATIENCE_S,
    ) -> Any:  # fmt: skip
        """One request; returns the decoded answer.

        While the server can't be reached, is busy or fails inside, the same request is sent again for `patience_s` (0: once). A caller whose
        request isn't safe to repeat gives 0 or reads a 409 as its own earlier success.
        """
        give_up = time.monotonic() + patience_s
        wait, said, refreshed = 0.5, False, False
        while True:
            try:
                return json.loads(self._send(method, path, body, query, content_type, timeout_s).data or b"null")
            except client.ApiException as error:
                if error.status == 401 and not refreshed:
                    refreshed = True  # a token that was rotated a moment ago: read it again at once
                    self.log_in_again()
                    continue
                settling = error.status == 403 and time.monotonic() - self._last_trouble < SETTLING_S
                if not (_may_pass(error) or settling) or time.monotonic() > give_up:
                    raise _as_api_error(error, f"{method} {path}") from None
                problem = f"{error.status or ''} {error.reason}".strip()
                if not settling:
                    self._last_trouble = time.monotonic()
            except (urllib3.exceptions.HTTPError, OSError) as error:
                if time.monotonic() > give_up:
                    raise ClrflowError(
                        f"{method} {path}: the API server {self.api.configuration.host} could not be reached for {patience_s:.0f} s ({error}); "
                        "check that it runs and that this machine or pod may reach it."
                    ) from None
                problem = str(error)
                self._last_trouble = time.monotonic()
            if not said:
                said = True
                say(f"API server: {problem}; asking again for up to {patience_s:.0f} s")
            time.sleep(wait)
            wait = min(wait * 1.5, 5.0)
            self.log_in_again()

    @contextlib.contextmanager
    def lines(self, path: str, query: Mapping[str, Any] | None = None, timeout_s: float = 60) -> Iterator[Iterator[str]]:
        """The lines of a streamed answer (a log, a watch) as they come; ends when the server ends it or after `timeout_s` of silence.

        The caller decides whether to open it again; a connection that breaks raises ClrflowError.
        """
        try:
            response = self._send("GET", path, None, query, "application/json", timeout_s)
        except client.ApiException as error:
            raise _as_api_error(error, f"GET {path}") from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClrflowError(f"GET {path}: {error}") from None
        try:
            yield self._read_lines(response, path)
        finally:
            response.close()
            response.release_conn()

    @staticmethod
    def _read_lines(response: Any, path: str) -> Iterator[str]:
        rest = b""
        try:
            for chunk in response.stream(amt=None, decode_content=False):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line.decode("utf-8", "replace")
        except urllib3.exceptions.ReadTimeoutError:
            return  # what came of a line is read again with the rest of it
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClrflowError(f"GET {path}: {error}") from None
        if rest:
            yield rest.decode("utf-8", "replace")

    def can_i(
        self, verb: str, resource: str, group: str = "", *, subresource: str = "", name: str = "", cluster_wide: bool = False
    ) -> bool:
        """May this account do it? (SelfSubjectAccessReview)"""
        attributes = {"verb": verb, "resource": resource, "group": group, "subresource": subresource, "name": name}
        if not cluster_wide:
            attributes["namespace"] = self.namespace
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
        answer = self.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
        return bool(answer["status"]["allowed"])

    def core(self, resource: str, name: str = "", subresource: str = "") -> str:
        """Path of a namespaced core resource: `core("pods", "a", "log")`."""
        return "/".join(part for part in (f"/api/v1/namespaces/{self.namespace}/{resource}", name, subresource) if part)

    def custom(self, group: str, version: str, plural: str, name: str = "") -> str:
        """Path of a namespaced resource of a named API group."""
        return "/".join(part for part in (f"/apis/{group}/{version}/namespaces/{self.namespace}/{plural}", name) if part)

    def _send(self, method: str, path: str, body: Any, query: Mapping[str, Any] | None, content_type: str, timeout_s: float) -> Any:
        return self.api.call_api(
            path, method, query_params=list((query or {}).items()), body=body, auth_settings=["BearerToken"],
            header_params={"Accept": "application/json, */*", "Content-Type": content_type},
            _return_http_data_only=True, _preload_content=False, _request_timeout=(10, timeout_s),
        )  # fmt: skip

    def log_in_again(self) -> None:
        """Read the credentials again: service accounts' tokens are rotated, and the client reads a kubeconfig's only once."""
        with contextlib.suppress(config.ConfigException, OSError, yaml.YAMLError):
            self.api = self._reconnect()


def _in_cluster() -> client.ApiClient:
    settings = client.Configuration()
    config.load_incluster_config(client_configuration=settings)
    return _client(settings)


def _from_kubeconfig() -> client.ApiClient:
    settings = client.Configuration()
    # The client package reads the variable at its own import only.
    config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=settings)
    return _client(settings)


def _client(settings: client.Configuration) -> client.ApiClient:
    settings.retries = False  # `call` waits by itself, and says what it waits for
    return client.ApiClient(settings)


def _may_pass(error: client.ApiException) -> bool:
    """Worth asking again: a server that is busy or restarts, a token not yet rotated. Status 0 is TLS cut short, unless a certificate is wrong."""
    return error.status in (*TRANSIENT, 401) or (not error.status and "CERTIFICATE_VERIFY_FAILED" not in str(error.reason))


def _as_api_error(error: client.ApiException, doing: str) -> ApiError:
    try:
        answer = json.loads(error.body or b"{}")
    except ValueError:
        answer = {}
    reason = answer.get("reason") or error.reason or ""
    return ApiError(int(error.status or 0), reason, answer.get("message") or str(error.body or "")[:500], doing)
