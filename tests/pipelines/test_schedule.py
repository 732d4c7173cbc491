"""clrflow schedule: one recurring run of a name, replaced without a moment in which two fire; wrong times refused before anything is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from clrflow.errors import BadInput
from pipelines.cli import app
from pipelines.kubeflow import schedule as scheduling
from pipelines.kubeflow.cron import check_cron
from tests.pipelines.kfp_server import API, KfpServer, Refused, compiled_once

PLACES = ("--workspace", "/mnt/data/w", "--set", "data.tables=/mnt/data/tables")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, without_credentials: None) -> None:
    monkeypatch.setattr(scheduling, "compiled_bytes", compiled_once)


def schedule(server: KfpServer, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["schedule", "--endpoint", server.url, *arguments])


def test_scheduling_twice_leaves_one_that_never_overlaps_nor_catches_up(server: KfpServer) -> None:
    first = schedule(server, "--cron", "0 0 6 * * *", *PLACES)
    assert first.exit_code == 0, first.output
    second = json.loads(schedule(server, "--cron", "0  30 7 * * 1-5", *PLACES, "--json").stdout)
    (recurring,) = server.recurring.values()
    assert recurring["recurring_run_id"] == second["recurring_run_id"]
    assert len(second["replaced"]) == 1
    assert server.most_enabled == 1
    assert recurring["mode"] == "ENABLE"
    assert recurring["trigger"] == {"cron_schedule": {"cron": "0 30 7 * * 1-5"}}
    assert recurring["max_concurrency"] == "1"
    assert recurring["no_catchup"] is True
    assert set(recurring["pipeline_version_reference"]) == {"pipeline_id", "pipeline_version_id"}


def test_each_run_names_itself_and_takes_the_schedules_lock(server: KfpServer) -> None:
    assert schedule(server, "--cron", "0 0 6 * * *", "--name", "nightly", "--preset", "production", *PLACES).exit_code == 0
    (recurring,) = server.recurring.values()
    assert recurring["runtime_config"]["parameters"] == {
        "preset": "production", "workspace": "/mnt/data/w", "overrides": "data.tables=/mnt/data/tables", "lock": "nightly",
    }  # fmt: skip


def test_the_old_schedule_stays_when_the_new_one_can_not_be_switched_on(server: KfpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule(server, "--cron", "0 0 6 * * *", *PLACES)
    (old,) = server.recurring
    real = KfpServer.switch_recurring

    def fails_for_new(self: KfpServer, call: Any, recurring_run_id: str, verb: str) -> Any:
        if recurring_run_id != old:
            raise Refused(400, "the controller is not in the mood")
        return real(self, call, recurring_run_id, verb)

    monkeypatch.setattr(KfpServer, "switch_recurring", fails_for_new)
    said = schedule(server, "--cron", "0 0 7 * * *", *PLACES)
    assert said.exit_code == 1
    assert "the controller is not in the mood" in said.stderr
    assert [(recurring["recurring_run_id"], recurring["mode"]) for recurring in server.recurring.values()] == [(old, "ENABLE")]


def test_other_schedules_are_left_alone_and_can_be_listed_and_deleted(server: KfpServer) -> None:
    for name in ("a", "b", "c"):
        schedule(server, "--cron", "0 0 6 * * *", "--name", name, *PLACES)
    assert schedule(server, "--delete", "b").exit_code == 0
    listed = json.loads(schedule(server, "--list", "--json").stdout)
    assert [(row["name"], row["cron"]) for row in listed] == [("a", "0 0 6 * * *"), ("c", "0 0 6 * * *")]
    missing = schedule(server, "--delete", "b")
    assert missing.exit_code == 2
    assert "there is no recurring run 'b'; there are a, c." in missing.stderr


def test_a_schedule_without_a_time_or_with_a_strange_name_sends_nothing(server: KfpServer) -> None:
    for arguments, word in (((), "--cron is missing"), (("--cron", "0 0 6 * * *", "--name", "a/b"), "--name 'a/b'")):
        said = schedule(server, *arguments, *PLACES)
        assert said.exit_code == 2
        assert word in said.stderr
    assert server.calls == []


@pytest.mark.parametrize("cron", ["0 0 6 * * *", "0 */15 * ? * MON-FRI", "30 0 6,18 1 JAN,Jul *", "0 5/10 * * * 0-6"])
def test_a_time_that_kubeflow_understands_passes(cron: str) -> None:
    assert check_cron(f" {cron} ") == cron


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 6 * * *", "has 5 fields, and Kubeflow's has 6, of which the first is seconds; write '0 0 6 * * *'"),
        ("@daily", "has 1 field(s)"),
        ("0 0 24 * * *", "'24' is no hour; write 0 to 23"),
        ("0 0 6 0 * *", "'0' is no day of month"),
        ("0 0 6 * 13 *", "'13' is no month; write 1 to 12 or jan to dec"),
        ("0 0 6 * * MON-XYZ", "'MON-XYZ' is no day of week"),
        ("0 0 18-6 * * *", "'18-6' is no hour"),
        ("0 */0 6 * * *", "'*/0' is no minute"),
        ("* * * * * *", "fires many times a minute"),
        ("[[Cron]]", "macro that was not expanded"),
    ],
)
def test_a_time_that_kubeflow_would_refuse_or_never_reach_is_refused(cron: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_cron(cron)
    assert words in str(caught.value)


def test_the_server_of_these_tests_is_strict(server: KfpServer) -> None:
    import urllib3

    def refused(path: str, body: Any) -> str:
        answer = urllib3.request("POST", f"{server.url}{API}{path}", json=body)
        assert answer.status == 400
        return str(answer.json()["message"])

    assert refused("/experiments", {"display_name": "e", "colour": 1}) == 'unknown field "colour" in V2beta1Experiment'
    assert refused("/experiments", {}) == "display_name is missing"
    assert refused("/recurringruns", {"max_concurrency": 1}) == "max_concurrency is int, not str"
    assert refused("/recurringruns", {"mode": "ON"}).startswith("mode='ON' is none of")
    assert refused("/experiments?x=1", {}) == "unknown query parameter(s) x"
