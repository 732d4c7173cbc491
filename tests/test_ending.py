"""The exit handler: it gives the lock back, tells of failures and held models, and is cheap where there is nothing to do."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from clrflow import lock, storage, webhook
from clrflow.configure import configure_run
from clrflow.ending import end_run
from clrflow.run_names import run_of_job

JOB = "0f9a2b6c-1111-2222-3333-444455556666"


class Hook:
    """A web service that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.asked = 0
        self.status = 200
        self.url = ""


@pytest.fixture
def hook() -> Iterator[Hook]:
    kept = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.asked += 1
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if kept.status == 200:
                kept.told.append(body)
            self.send_response(kept.status)
            self.send_header("Content-Length", "0")
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"http://127.0.0.1:{server.server_port}/hook?token=hunter2"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield kept
    server.shutdown()
    server.server_close()


def begun(tmp_path: Path, **options: Any) -> str:
    """The URI of a run that was configured."""
    return configure_run(preset="small", workspace=str(tmp_path), overrides="data.tables=/t", **options).uri


def gate_said(run: str, workspace: Path, decision: str) -> None:
    folder = str(workspace / "steps" / "gate" / "k")
    facts = {"decision": decision, "reason": "recall@50 0.1 against 0.2"}
    storage.write_json(f"{folder}/manifest.json", {"facts": facts})
    storage.write_json(f"{run}/gate.json", {"uri": folder, "reused": False})


def test_a_failure_is_told_with_the_steps_own_words(tmp_path: Path, hook: Hook, capsys: pytest.CaptureFixture[str]) -> None:
    run = begun(tmp_path, run_name="r")
    storage.write_json(f"{run}/failure.json", {"step": "train", "message": "the loss is not finite.", "exit_code": 1, "kind": "x"})
    end_run(workspace=str(tmp_path), run_name="r", state="FAILED", webhook_url=hook.url)
    assert hook.told == [
        {
            "run": "r", "state": "failed", "status": "FAILED", "reason": "step train failed: the loss is not finite.",
            "report": f"{run}/failure.json",
        }
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert "run r: failed: step train failed" in said
    assert "hunter2" not in said


def test_a_held_model_is_told_although_the_run_succeeded(tmp_path: Path, hook: Hook) -> None:
    gate_said(begun(tmp_path, run_name="r"), tmp_path, "hold")
    ending = end_run(workspace=str(tmp_path), run_name="r", state="COMPLETE", webhook_url=hook.url)
    assert ending.held
    assert [(told["state"], told["status"], told["reason"]) for told in hook.told] == [("held", "COMPLETE", "recall@50 0.1 against 0.2")]
    assert hook.told[0]["report"] == str(tmp_path / "steps/gate/k/report.html")


def test_a_published_model_is_told_to_nobody(tmp_path: Path, hook: Hook) -> None:
    gate_said(begun(tmp_path, run_name="r"), tmp_path, "publish")
    assert end_run(workspace=str(tmp_path), run_name="r", state="SUCCEEDED", webhook_url=hook.url).state == "succeeded"
    assert hook.asked == 0


def test_a_terminated_run_is_told_so_although_kubeflow_says_running(tmp_path: Path, hook: Hook) -> None:
    begun(tmp_path, run_name="r")
    end_run(workspace=str(tmp_path), run_name="r", state="RUNNING", webhook_url=hook.url)
    assert [(told["state"], told["reason"]) for told in hook.told] == [("terminated", "it was terminated.")]


def test_a_run_whose_settings_were_refused_is_told_by_kubeflows_id(tmp_path: Path, hook: Hook) -> None:
    end_run(workspace=str(tmp_path), job=JOB, state="FAILED", webhook_url=hook.url)
    assert hook.told[0]["run"] == JOB
    assert "the first step ended before the run was written down" in hook.told[0]["reason"]


@pytest.mark.parametrize(("status", "words"), [(500, "HTTP 500"), (302, "HTTP 302")])
def test_a_web_service_that_fails_or_redirects_changes_nothing(
    tmp_path: Path, hook: Hook, capsys: pytest.CaptureFixture[str], status: int, words: str
) -> None:
    begun(tmp_path, run_name="r")
    hook.status = status
    end_run(workspace=str(tmp_path), run_name="r", state="FAILED", webhook_url=hook.url)
    said = capsys.readouterr().out
    assert f"could not be told ({words})" in said
    assert "hunter2" not in said
    assert hook.asked == webhook.ATTEMPTS


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://127.0.0.1:1/hunter2", "hunter2"])
def test_a_url_that_can_not_be_told_is_never_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not webhook.notify(url, {})
    said = capsys.readouterr().out
    assert "told" in said
    assert "hunter2" not in said
    assert "passwd" not in said


def test_the_run_of_a_schedule_is_found_by_kubeflows_id_and_gives_its_lock_back(tmp_path: Path) -> None:
    first = begun(tmp_path, job=JOB, lock="daily")
    assert begun(tmp_path, job=JOB, lock="daily") == first, "a retried first step finds its name again"
    assert lock.holder(str(tmp_path), "daily") is not None
    ending = end_run(workspace=str(tmp_path), job=JOB, lock="daily", state="COMPLETE")
    assert ending.run == run_of_job(str(tmp_path), JOB) == storage.name_of(first)
    assert lock.holder(str(tmp_path), "daily") is None


def test_a_run_that_found_the_lock_taken_does_nothing_and_leaves_it_alone(tmp_path: Path, hook: Hook) -> None:
    from clrflow.steps import execute

    first, second = (begun(tmp_path, run_name=name, lock="daily") for name in ("first", "second"))
    outcome = execute("validate_data", second)
    assert outcome.manifest.facts["skipped"].startswith("another run, first, held the lock daily")
    assert not (tmp_path / "steps").exists()
    for step in ("train", "publish"):  # what they were given is not even looked at
        assert execute(step, second, {"validate_data": outcome.uri}).manifest.outputs == {}
    ending = end_run(workspace=str(tmp_path), run_name="second", lock="daily", state="COMPLETE", webhook_url=hook.url)
    assert ending.skipped
    assert hook.asked == 0
    holder = lock.holder(str(tmp_path), "daily")
    assert holder is not None
    assert holder.run == storage.name_of(first)


def test_what_a_skipped_step_leaves_is_a_page_and_a_manifest_for_kubeflow(tmp_path: Path) -> None:
    from clrflow.steps import execute

    begun(tmp_path, run_name="first", lock="daily")
    outcome = execute("gate", begun(tmp_path, run_name="second", lock="daily"))
    outcome.save(manifest=str(tmp_path / "m.json"), report=str(tmp_path / "r.html"))
    assert "another run, first, held the lock daily" in (tmp_path / "r.html").read_text()
    assert json.loads((tmp_path / "m.json").read_text())["outputs"] == {}


def test_the_exit_handler_imports_neither_kubernetes_nor_settings_when_training_ran_in_its_step(tmp_path: Path) -> None:
    begun(tmp_path, run_name="r")
    code = (
        "import sys\nfrom clrflow.ending import end_run\n"
        f"end_run(workspace={str(tmp_path)!r}, run_name='r', state='COMPLETE')\n"
        "print(sorted({'kubernetes', 'pydantic', 'torch', 'pyarrow', 'yaml', 'urllib.request'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.splitlines() == ["jobs: training ran in its own step, so there is no job to end", "run r: succeeded", "[]"]


def test_a_cluster_that_can_not_be_reached_is_said_and_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path, run_name="r", lock="daily")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    end_run(workspace=str(tmp_path), run_name="r", lock="daily", launcher="pytorchjob", state="COMPLETE")
    assert "jobs: could not be looked for (no cluster to talk to" in capsys.readouterr().out
    assert lock.holder(str(tmp_path), "daily") is None
