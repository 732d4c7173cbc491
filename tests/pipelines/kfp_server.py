"""A server for tests that speaks the v2beta1 REST API of Kubeflow Pipelines 2.17 as far as clrflow uses it, and is strict about it.

Bodies are held against the models that Kubeflow's own generated client has: an unknown field, a wrong type, an unknown enum value or a missing
field is a 400 in Kubeflow's error shape, an unknown id a 404, a name that is taken a 409. It keeps what it is told and has switches for what
goes wrong in life: a token that is asked for, answers 503, slowness, answers that get lost.
"""

from __future__ import annotations

import dataclasses
import email.parser
import email.policy
import functools
import json
import re
import threading
import time
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import kfp_server_api
import yaml

from clrflow.launch.settings import LaunchSettings
from pipelines.kubeflow import upload

API = "/apis/v2beta1"
_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 503: 14}
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LISTS = {"page_size", "page_token", "sort_by", "filter", "namespace"}


class Refused(Exception):
    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status, self.message = status, message


@dataclasses.dataclass
class Call:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    authorization: str


class KfpServer:
    """State and switches; `with KfpServer() as server: server.url`."""

    def __init__(self) -> None:
        self.pipelines: dict[str, dict[str, Any]] = {}
        self.versions: dict[str, dict[str, Any]] = {}
        self.experiments: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.recurring: dict[str, dict[str, Any]] = {}
        self.calls: list[Call] = []
        self.token = ""
        """Asked for in each call when set."""
        self.forbidden = False
        self.answers: list[int] = []
        """HTTP statuses that the next calls get instead of their answer."""
        self.lose: list[str] = []
        """`METHOD path` of calls that are carried out once and then answered with 503."""
        self.delay_s = 0.0
        self.page = "application/json"
        """Another type answers with a page of HTML, as a login page before the API does."""
        self.script: list[dict[str, Any]] = []
        """What each look at a run finds: `{"state": …, "steps": {display name: state}, "message": …}`; the last one stays."""
        self.most_enabled = 0
        """The most recurring runs of one name that were ever enabled at once."""

    def __enter__(self) -> KfpServer:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def made(self, method: str, path: str) -> list[Call]:
        return [call for call in self.calls if call.method == method and call.path == path]

    def answer(self, call: Call, content_type: str, raw: bytes) -> Any:
        path = call.path.removeprefix(API)
        if path == call.path:
            raise Refused(404, "page not found")
        if path == "/healthz":
            return {"multi_user": False, "pipeline_store": "database"}
        for pattern, function, query in _ROUTES:
            found = re.fullmatch(pattern, f"{call.method} {path}")
            if found:
                unknown = set(call.query) - query
                if unknown:
                    raise Refused(400, f"unknown query parameter(s) {', '.join(sorted(unknown))}")
                if function == "upload_version":
                    return self.upload_version(call, content_type, raw)
                return getattr(self, function)(call, *found.groups())
        raise Refused(404, f"no such method: {call.method} {path}")

    def create_pipeline(self, call: Call) -> Any:
        body = checked(call.body, kfp_server_api.V2beta1Pipeline, needed=("display_name",))
        if any(body["display_name"] == there["display_name"] for there in self.pipelines.values()):
            raise Refused(409, f"The name {body['display_name']} already exist. Please specify a new name.")
        return _kept(self.pipelines, "pipeline_id", body)

    def list_pipelines(self, call: Call) -> Any:
        return _page(call, "pipelines", self.pipelines.values())

    def list_versions(self, call: Call, pipeline_id: str) -> Any:
        _there(self.pipelines, pipeline_id, "Pipeline")
        return _page(call, "pipeline_versions", [v for v in self.versions.values() if v["pipeline_id"] == pipeline_id])

    def upload_version(self, call: Call, content_type: str, raw: bytes) -> Any:
        _there(self.pipelines, call.query.get("pipelineid", ""), "Pipeline")
        parts = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(f"content-type: {content_type}\r\n\r\n".encode() + raw)
        files = {part.get_param("name", header="content-disposition"): part for part in parts.iter_parts()}
        if set(files) != {"uploadfile"}:
            raise Refused(400, f"the multipart form has {sorted(map(str, files))}, not the one part uploadfile")
        documents = list(yaml.load_all(files["uploadfile"].get_payload(decode=True), Loader=_LOADER))
        if not {"components", "deploymentSpec", "pipelineInfo", "root", "schemaVersion", "sdkVersion"} <= set(documents[0]):
            raise Refused(400, "Failed to parse the pipeline: no pipeline spec")
        if len(documents) > 2 or (len(documents) == 2 and set(documents[1]) != {"platforms"}):
            raise Refused(400, "Failed to parse the pipeline: the second document is no platform spec")
        name = call.query.get("name") or raise_missing("name")
        if any(name == v["display_name"] and v["pipeline_id"] == call.query["pipelineid"] for v in self.versions.values()):
            raise Refused(409, f"The name {name} already exist. Please specify a new name.")
        body = {"display_name": name, "pipeline_id": call.query["pipelineid"], "description": call.query.get("description", "")}
        return _kept(self.versions, "pipeline_version_id", {**body, "pipeline_spec": documents[0]})

    def create_experiment(self, call: Call) -> Any:
        body = checked(call.body, kfp_server_api.V2beta1Experiment, needed=("display_name",))
        if any(body["display_name"] == there["display_name"] for there in self.experiments.values()):
            raise Refused(409, f"Experiment {body['display_name']} already exists.")
        return _kept(self.experiments, "experiment_id", {"storage_state": "AVAILABLE", **body})

    def list_experiments(self, call: Call) -> Any:
        return _page(call, "experiments", self.experiments.values())

    def create_run(self, call: Call) -> Any:
        body = checked(call.body, kfp_server_api.V2beta1Run, needed=("display_name", "experiment_id", "pipeline_version_reference"))
        self._checked_job(body)
        return _kept(self.runs, "run_id", {"state": "PENDING", **body})

    def list_runs(self, call: Call) -> Any:
        wanted = call.query.get("experiment_id")
        return _page(call, "runs", [run for run in self.runs.values() if wanted in (None, run["experiment_id"])])

    def get_run(self, call: Call, run_id: str) -> Any:
        run = _there(self.runs, run_id, "Run")
        if not self.script:
            return run
        now = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        tasks = [
            {
                "run_id": run_id, "task_id": name, "display_name": name, "state": state, "start_time": "2026-11-30T06:00:00Z",
                "end_time": "2026-11-30T06:00:12Z" if state not in ("RUNNING", "PENDING") else "1970-01-01T00:00:00Z",
                **({"error": {"code": 2, "message": now["message"]}} if state == "FAILED" and "message" in now else {}),
            }
            for name, state in now.get("steps", {}).items()
        ]  # fmt: skip
        run["state"] = now["state"]
        return {**run, "run_details": {"task_details": tasks}}

    def terminate_run(self, call: Call, run_id: str) -> Any:
        _there(self.runs, run_id, "Run")["state"] = "CANCELING"
        return {}

    def create_recurring(self, call: Call) -> Any:
        needed = ("display_name", "experiment_id", "pipeline_version_reference", "trigger", "max_concurrency", "mode")
        body = checked(call.body, kfp_server_api.V2beta1RecurringRun, needed=needed)
        self._checked_job(body)
        cron = body["trigger"].get("cron_schedule", {}).get("cron", "")
        if len(cron.split()) != 6:
            raise Refused(400, f"The Schedule cron is invalid: expected exactly 6 fields, found {len(cron.split())}: {cron}")
        if not 1 <= int(body["max_concurrency"]) <= 10:
            raise Refused(400, "The max concurrency of the recurring run is out of range. Support 1-10.")
        made = _kept(self.recurring, "recurring_run_id", body)
        self._count_enabled()
        return made

    def list_recurring(self, call: Call) -> Any:
        return _page(call, "recurringRuns", self.recurring.values())

    def switch_recurring(self, call: Call, recurring_run_id: str, verb: str) -> Any:
        _there(self.recurring, recurring_run_id, "RecurringRun")["mode"] = verb.upper()
        self._count_enabled()
        return {}

    def delete_recurring(self, call: Call, recurring_run_id: str) -> Any:
        _there(self.recurring, recurring_run_id, "RecurringRun")
        del self.recurring[recurring_run_id]
        return {}

    def _count_enabled(self) -> None:
        names = [recurring["display_name"] for recurring in self.recurring.values() if recurring["mode"] == "ENABLE"]
        self.most_enabled = max([self.most_enabled, *(names.count(name) for name in names)])

    def _checked_job(self, body: dict[str, Any]) -> None:
        """What runs and recurring runs share: both ids of a version that exists, an experiment that exists, parameters that it declares."""
        _there(self.experiments, body["experiment_id"], "Experiment")
        reference = body["pipeline_version_reference"]
        if set(reference) != {"pipeline_id", "pipeline_version_id"}:
            raise Refused(400, "pipeline_version_reference needs pipeline_id and pipeline_version_id")
        version = _there(self.versions, reference["pipeline_version_id"], "PipelineVersion")
        if version["pipeline_id"] != reference["pipeline_id"]:
            raise Refused(400, "the version belongs to another pipeline")
        declared = version["pipeline_spec"]["root"]["inputDefinitions"]["parameters"]
        for name, value in body.get("runtime_config", {}).get("parameters", {}).items():
            if name not in declared:
                raise Refused(400, f"parameter {name} is not declared by the pipeline")
            kind = declared[name]["parameterType"]
            if not isinstance(value, str if kind == "STRING" else int | float):
                raise Refused(400, f"parameter {name} is {type(value).__name__}, not {kind}")


_JOB = r"([0-9a-f-]+)"
_ROUTES: tuple[tuple[str, str, set[str]], ...] = (
    ("POST /pipelines", "create_pipeline", set()),
    ("GET /pipelines", "list_pipelines", _LISTS),
    (f"GET /pipelines/{_JOB}/versions", "list_versions", _LISTS - {"namespace"}),
    ("POST /pipelines/upload_version", "upload_version", {"name", "display_name", "pipelineid", "description", "tags"}),
    ("POST /experiments", "create_experiment", set()),
    ("GET /experiments", "list_experiments", _LISTS),
    ("POST /runs", "create_run", {"experiment_id"}),
    ("GET /runs", "list_runs", _LISTS | {"experiment_id"}),
    (f"GET /runs/{_JOB}", "get_run", {"experiment_id"}),
    (f"POST /runs/{_JOB}:terminate", "terminate_run", {"experiment_id"}),
    ("POST /recurringruns", "create_recurring", set()),
    ("GET /recurringruns", "list_recurring", _LISTS | {"experiment_id"}),
    (f"POST /recurringruns/{_JOB}:(enable|disable)", "switch_recurring", set()),
    (f"DELETE /recurringruns/{_JOB}", "delete_recurring", set()),
)


def checked(body: Any, model: Any, needed: tuple[str, ...] = (), path: str = "") -> dict[str, Any]:
    """The body, held against a model of the generated client; raises Refused(400) naming the field."""
    if not isinstance(body, dict):
        raise Refused(400, f"{path or model.__name__}: not an object")
    types = {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}
    for name, value in body.items():
        if name not in types:
            raise Refused(400, f'unknown field "{path}{name}" in {model.__name__}')
        _check_type(value, types[name], f"{path}{name}")
    for name in needed:
        if body.get(name) in (None, "", {}):
            raise_missing(name)
    return body


def _check_type(value: Any, kind: str, path: str) -> None:
    plain = {"str": str, "bool": bool, "int": int, "object": dict, "datetime": str}
    if kind in plain:
        if not isinstance(value, plain[kind]):
            raise Refused(400, f"{path} is {type(value).__name__}, not {kind}")
    elif kind.startswith("dict("):
        if not isinstance(value, dict):
            raise Refused(400, f"{path} is {type(value).__name__}, not an object")
    else:
        model = getattr(kfp_server_api, kind)
        if not model.openapi_types:
            if value not in model.allowable_values:
                raise Refused(400, f"{path}={value!r} is none of {model.allowable_values}")
        else:
            checked(value, model, path=f"{path}.")


def raise_missing(name: str) -> Any:
    raise Refused(400, f"{name} is missing")


def _there(kept: dict[str, dict[str, Any]], identifier: str, what: str) -> dict[str, Any]:
    if identifier not in kept:
        raise Refused(404, f"{what} {identifier} not found")
    return kept[identifier]


def _kept(where: dict[str, dict[str, Any]], key: str, body: dict[str, Any]) -> dict[str, Any]:
    identifier = str(uuid.uuid4())
    where[identifier] = {**body, key: identifier, "created_at": "2026-11-30T06:00:00Z"}
    return where[identifier]


def _page(call: Call, key: str, everything: Any) -> dict[str, Any]:
    """A page of a list, filtered by equality as Kubeflow's clients write it; small pages, so that paging is exercised."""
    found = list(everything)
    for predicate in json.loads(call.query.get("filter", '{"predicates": []}'))["predicates"]:
        if predicate.get("operation") not in (1, "EQUALS") or "stringValue" not in predicate:
            raise Refused(400, f"filter {predicate} is not understood")
        found = [entry for entry in found if entry.get(predicate["key"]) == predicate["stringValue"]]
    start = int(call.query.get("page_token") or 0)
    size = min(int(call.query.get("page_size") or 10), 2)
    rest = {"next_page_token": str(start + size)} if start + size < len(found) else {}
    return {key: found[start : start + size], "total_size": len(found), **rest}


def _handler(server: KfpServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urllib.parse.urlsplit(self.path)
            kind = self.headers.get("Content-Type", "")
            call = Call(
                method=self.command, path=parts.path, query=dict(urllib.parse.parse_qsl(parts.query)),
                body=json.loads(raw) if raw and kind == "application/json" else None, authorization=self.headers.get("Authorization", ""),
            )  # fmt: skip
            server.calls.append(call)
            time.sleep(server.delay_s)
            status, answer = 200, {}
            try:
                status = self._wrong(call)
                if status == 200:
                    answer = server.answer(call, kind, raw)
                    if f"{call.method} {call.path.removeprefix(API)}" in server.lose:
                        server.lose.remove(f"{call.method} {call.path.removeprefix(API)}")
                        status = 503
            except Refused as error:
                status = error.status
                answer = {"error": error.message, "code": _CODES[status], "message": error.message, "details": []}
                if error.message == "page not found":
                    answer = {}
            self._reply(status, answer)

        def _wrong(self, call: Call) -> int:
            if server.token and call.authorization != f"Bearer {server.token}":
                return 401
            if server.forbidden:
                raise Refused(403, "User 'mary' is not authorized with reason: (request: list pipelines)")
            return server.answers.pop(0) if server.answers else 200

        def _reply(self, status: int, answer: Any) -> None:
            html = server.page != "application/json"
            data = b"<html>Please sign in</html>" if html else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", server.page)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815  (names that http.server looks for)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@functools.lru_cache(maxsize=8)
def _compiled(image: str, launch: str) -> bytes:
    return upload.compiled_bytes(image, LaunchSettings.model_validate_json(launch))


def compiled_once(image: str, launch: LaunchSettings) -> bytes:
    """What upload.compiled_bytes gives, remembered: compiling takes a second, and tests ask for the same content many times."""
    return _compiled(image, launch.model_dump_json())
