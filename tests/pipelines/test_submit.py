"""clrflow submit against a strict server: one upload for one content, a run under its name, and an exit code that tells how it ended."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from clrflow.errors import BadInput, ClrflowError
from clrflow.launch.settings import LaunchSettings
from pipelines.cli import app
from pipelines.kubeflow import follow
from pipelines.kubeflow import submit as submission
from pipelines.kubeflow.client import ApiError, Client, Unreachable
from pipelines.kubeflow.credentials import credentials
from pipelines.kubeflow.parameters import choose
from pipelines.kubeflow.upload import upload
from tests.pipelines.kfp_server import API, KfpServer, compiled_once

TOKEN = "hunter2-secret-token"  # noqa: S105  (of a server that lives for one test)
PLACES = ("--workspace", "/mnt/data/w", "--set", "data.tables=/mnt/data/tables")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, without_credentials: None) -> None:
    monkeypatch.setattr(submission, "compiled_bytes", compiled_once)
    monkeypatch.setattr(follow.follow, "__kwdefaults__", {**(follow.follow.__kwdefaults__ or {}), "every_s": 0.02})


@pytest.fixture(scope="module")
def compiled() -> bytes:
    return compiled_once("", LaunchSettings())


def client(server: KfpServer, **options: Any) -> Client:
    return Client(server.url, credentials(environment={}), **{"patience_s": 2, "tell": lambda _: None, **options})


def submit(server: KfpServer, *arguments: str, places: tuple[str, ...] = PLACES) -> Result:
    return CliRunner().invoke(app, ["submit", "--endpoint", server.url, *places, *arguments])


def test_a_run_is_started_with_what_was_given_and_nothing_else(server: KfpServer) -> None:
    said = submit(server, "--run-name", "first", "--preset", "demo", "--launcher", "local", "--set", "training.epochs=2")
    assert said.exit_code == 0, said.output
    (run,) = server.runs.values()
    assert run["display_name"] == "first"
    assert run["runtime_config"]["parameters"] == {
        "preset": "demo", "workspace": "/mnt/data/w", "run_name": "first", "launcher": "local",
        "overrides": "data.tables=/mnt/data/tables\ntraining.epochs=2",
    }  # fmt: skip
    (experiment,) = server.experiments.values()
    assert experiment["display_name"] == "clrflow"
    assert f"run first in experiment clrflow: {server.url}/#/runs/details/{run['run_id']}" in said.output


def test_equal_content_is_uploaded_once_and_the_second_submission_uses_it(server: KfpServer) -> None:
    first, second = (json.loads(submit(server, "--json").stdout) for _ in range(2))
    assert (first["uploaded"], second["uploaded"]) == (True, False)
    assert first["version_id"] == second["version_id"]
    assert first["run_id"] != second["run_id"]
    assert len(server.made("POST", f"{API}/pipelines/upload_version")) == len(server.pipelines) == len(server.experiments) == 1


def test_other_mounts_or_images_are_another_version_of_the_same_pipeline(server: KfpServer, compiled: bytes) -> None:
    first = upload(client(server), compiled, "p")
    other = upload(client(server), compiled_once("registry.local/pipeline:7", LaunchSettings()), "p")
    assert other.is_new
    assert other.pipeline_id == first.pipeline_id
    assert other.version != first.version
    assert len(server.versions) == 2


def test_a_version_of_the_same_name_with_other_content_is_refused(server: KfpServer, compiled: bytes) -> None:
    upload(client(server), compiled, "p")
    (version,) = server.versions.values()
    version["description"] = "clrflow x, content 0123456789abcdef"
    with pytest.raises(ClrflowError, match=r"holds other content .* or upload under another name with --pipeline"):
        upload(client(server), compiled, "p")


def test_an_upload_whose_answer_was_lost_is_found_again(server: KfpServer, compiled: bytes) -> None:
    server.lose = ["POST /pipelines/upload_version"]
    found = upload(client(server), compiled, "p")
    assert found.version_id in server.versions
    assert len(server.versions) == 1


def test_a_run_whose_answer_was_lost_is_not_started_twice(server: KfpServer) -> None:
    server.lose = ["POST /runs"]
    said = submit(server, "--run-name", "only-one")
    assert said.exit_code == 0, said.output
    assert [run["display_name"] for run in server.runs.values()] == ["only-one"]


def test_a_config_file_travels_as_text_and_its_launch_part_dresses_the_pods(server: KfpServer, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("data: {tables: /mnt/data/tables}\nlaunch: {volumes: [{claim: fsx, path: /mnt/data}]}\n")
    said = submit(server, "--config", str(file), places=PLACES[:2])
    assert said.exit_code == 0, said.output
    (run,) = server.runs.values()
    sent = json.loads(run["runtime_config"]["parameters"]["config"])
    assert sent == {"data": {"tables": "/mnt/data/tables"}, "launch": {"volumes": [{"claim": "fsx", "path": "/mnt/data"}]}}
    assert "preset" not in run["runtime_config"]["parameters"]


def test_a_config_above_20_kilobytes_must_be_a_uri(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    actions = "\n".join(f"    - {{name: action_{index:04d}, weight: 1.0}}" for index in range(700))
    file.write_text(f"data:\n  tables: /mnt/t\n  actions:\n{actions}\n")
    with pytest.raises(BadInput, match=r"more than the 20,000 that travel with a run; copy it to where every pod can read it"):
        choose(config=str(file), workspace="/mnt/w")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workspace": ""}, "--workspace is missing"),
        ({"workspace": "w"}, "--workspace='w' is relative to a folder of this machine"),
        ({"overrides": ["data.tables=tables"]}, "data.tables='tables' is relative"),
        ({"launcher": "slurm"}, "--launcher 'slurm' is unknown; there are local, pytorchjob, trainjob"),
        ({"launcher": "pytorchjob"}, "launch.image is empty"),
        ({"overrides": ["training.epoch=3"]}, "did you mean 'epochs'"),
        ({"preset": "demo", "config": "x.yaml"}, "--preset demo and --config x.yaml were both given"),
        ({"preset": "demo", "resume": "r"}, "--preset demo and --resume r were both given"),
        ({"resume": "r", "overrides": ["training.epochs=3"]}, "takes all settings but launch"),
        ({"workspace": "s3://bucket/{{date}}"}, "macro that was not expanded"),
    ],
)
def test_what_no_run_could_use_is_refused_before_anything_is_sent(options: dict[str, Any], words: str) -> None:
    given = {"workspace": "/mnt/w", "overrides": ["data.tables=/mnt/t"], **options}
    with pytest.raises(BadInput) as caught:
        choose(**given)
    assert words in str(caught.value)


def test_waiting_follows_the_steps_and_ends_with_0_when_the_run_succeeded(server: KfpServer) -> None:
    done = {"configure": "SUCCEEDED", "configure-driver": "SUCCEEDED", "Train": "SUCCEEDED", "executor": "SUCCEEDED"}
    server.script = [
        {"state": "PENDING"},
        {"state": "RUNNING", "steps": {"configure": "RUNNING"}},
        {"state": "RUNNING", "steps": {**done, "Train": "RUNNING"}},
        {"state": "SUCCEEDED", "steps": done},
    ]
    said = submit(server, "--wait", "--run-name", "r")
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    assert lines[-7:-1] == [
        "run is pending", "▸ configure", "✓ configure finished (12.0s)", "▸ train", "✓ train finished (12.0s)", "run is succeeded",
    ]  # fmt: skip
    assert lines[-1].endswith("clrflow report r --workspace /mnt/data/w")


def test_a_failed_run_ends_with_1_and_names_the_step_and_what_kubeflow_said_of_it(server: KfpServer) -> None:
    server.script = [{"state": "FAILED", "steps": {"train": "FAILED"}, "message": "Error (exit code 1)"}]
    said = submit(server, "--wait", "--run-name", "r")
    assert said.exit_code == 1
    assert "error: run r failed: step train: Error (exit code 1)" in said.stderr
    assert f"Its log: {server.url}/#/runs/details/" in said.stderr


def test_a_failed_run_says_the_steps_own_words_where_its_workspace_can_be_read(server: KfpServer, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "r"
    folder.mkdir(parents=True)
    (folder / "failure.json").write_text(json.dumps({"step": "train", "message": "the loss is not finite.", "exit_code": 1, "kind": "x"}))
    server.script = [{"state": "FAILED", "steps": {"train": "FAILED"}}]
    said = submit(server, "--wait", "--run-name", "r", places=("--workspace", str(tmp_path), *PLACES[2:]))
    assert "error: run r failed: step train: the loss is not finite." in said.stderr


def test_a_canceled_run_ends_with_1(server: KfpServer) -> None:
    server.script = [{"state": "CANCELING"}, {"state": "CANCELED"}]
    said = submit(server, "--wait", "--run-name", "r")
    assert said.exit_code == 1
    assert "run r was canceled" in said.stderr


def test_a_wait_that_takes_too_long_says_that_the_run_goes_on_and_how_to_end_it(server: KfpServer) -> None:
    server.script = [{"state": "RUNNING", "steps": {"bootstrap": "RUNNING"}}]
    said = submit(server, "--wait", "--timeout", "0.1")
    assert said.exit_code == 1
    assert "did not end within 0 s (now: bootstrap). It goes on" in said.stderr
    assert ":terminate`" in said.stderr
    assert not any(call.path.endswith(":terminate") for call in server.calls)


def test_following_outlives_a_server_that_is_away_for_a_while(server: KfpServer) -> None:
    server.script = [{"state": "RUNNING"}, {"state": "SUCCEEDED"}]
    run_id = _started(server)
    server.answers = [503, 502]
    told: list[str] = []
    assert follow.follow(client(server), run_id, tell=told.append).state == "SUCCEEDED"


def _started(server: KfpServer) -> str:
    server.runs["0a"] = {"run_id": "0a", "state": "PENDING", "experiment_id": "1"}
    return "0a"


def test_ctrl_c_says_that_the_run_goes_on(server: KfpServer) -> None:
    server.script = [{"state": "RUNNING", "steps": {"train": "RUNNING"}}]
    command = [str(Path(sys.executable).with_name("clrflow")), "submit", "--endpoint", server.url, *PLACES, "--wait", "--run-name", "r"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert any("▸ train" in line for line in process.stdout)
        process.send_signal(2)
        assert process.wait(30) == 130
        said = process.stderr.read()
    assert "interrupted. Run r goes on; end it in the UI" in said
    assert "Traceback" not in said


def test_a_token_is_sent_with_every_call_and_never_shown(server: KfpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = TOKEN
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    said = submit(server, "--token-file", str(tmp_path / "token"))
    assert said.exit_code == 0, said.output
    assert {call.authorization for call in server.calls} == {f"Bearer {TOKEN}"}
    monkeypatch.setenv("CLRFLOW_KFP_TOKEN", f"{TOKEN}-old")
    refused = submit(server)
    assert refused.exit_code == 1
    assert "the environment variable CLRFLOW_KFP_TOKEN did not do" in refused.stderr
    assert TOKEN not in said.output + refused.output


def test_a_pods_own_token_is_read_anew_for_each_call(server: KfpServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    asked = Client(server.url, credentials(environment={"KF_PIPELINES_SA_TOKEN_PATH": str(tmp_path / "token")}), tell=lambda _: None)
    asked.healthy()
    (tmp_path / "token").write_text("second")
    asked.healthy()
    assert [call.authorization for call in server.calls] == ["Bearer first", "Bearer second"]


def test_missing_rights_name_the_namespace_the_credentials_and_what_the_server_said(server: KfpServer) -> None:
    server.forbidden = True
    with pytest.raises(ApiError, match=r"not allowed in namespace team-a with no credentials: User 'mary' is not authorized") as caught:
        client(server, namespace="team-a").healthy()
    assert caught.value.status == 403


def test_a_login_page_in_the_place_of_the_api_is_called_so(server: KfpServer) -> None:
    server.page = "text/html"
    with pytest.raises(BadInput, match="answered with text/html, not JSON: this is no API of Kubeflow Pipelines, or a login page"):
        client(server).healthy()


def test_a_wrong_path_says_what_the_endpoint_should_be(server: KfpServer) -> None:
    wrong = Client(f"{server.url}/ui", credentials(environment={}), tell=lambda _: None)
    with pytest.raises(BadInput, match=r"there is no /apis/v2beta1 below it \(404\); give the base URL"):
        wrong.healthy()


@pytest.mark.parametrize("endpoint", ["localhost:8888", "ftp://host", "https://", "https://host/?a=b"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(BadInput, match="give the base URL of Kubeflow Pipelines"):
        Client(endpoint, credentials(environment={}))


def test_a_password_in_an_endpoint_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadInput) as caught:
        Client("https://mary:secret@host/pipeline", credentials(environment={}))
    assert "secret" not in str(caught.value)


def test_nobody_listening_is_said_with_the_address() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(Unreachable, match=f"endpoint {endpoint} can't be reached.*refused"):
        Client(endpoint, credentials(environment={}), patience_s=0, tell=lambda _: None).healthy()


def test_an_answer_that_does_not_come_is_said_so(server: KfpServer) -> None:
    server.delay_s = 1.0
    with pytest.raises(Unreachable, match="did not answer in time"):
        client(server, timeout_s=0.1, patience_s=0).healthy()


def test_a_server_without_trusted_tls_is_said_with_the_remedy() -> None:
    # A server that doesn't speak TLS at all is the commonest case: https in front of a port-forward.
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer() -> None:
            connection, _ = plain.accept()
            connection.recv(64)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        endpoint = f"https://127.0.0.1:{plain.getsockname()[1]}"
        with pytest.raises(BadInput, match=r"no trusted TLS connection .* with --ca FILE"):
            Client(endpoint, credentials(environment={}), tell=lambda _: None).healthy()


def test_a_busy_server_is_asked_again_and_then_named(server: KfpServer) -> None:
    server.answers = [503, 500]
    told: list[str] = []
    client(server, tell=told.append).healthy()
    assert len(server.calls) == 3
    assert len(told) == 1
    server.answers = [503] * 50
    started = time.monotonic()
    with pytest.raises(ApiError, match="answered 503"):
        client(server, patience_s=0.6).healthy()
    assert time.monotonic() - started < 10
