"""The doctor finds what is missing and says how to get it."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines import doctor
from pipelines.cli import app


def test_a_machine_that_runs_these_tests_has_what_is_needed() -> None:
    checks = {check.name: check for check in doctor.check_machine()}
    assert [name for name, check in checks.items() if check.state == "missing"] == []
    assert "fbgemm-gpu-cpu" in checks["fbgemm operator"].found or "fbgemm-gpu " in checks["fbgemm operator"].found
    assert checks["settings"].found == "presets demo, small, production are sound"


def test_a_missing_package_ends_with_code_1_and_a_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def without_duckdb(name: str) -> str:
        if name == "duckdb":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", without_duckdb)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "→ pip install 'clrflow[data]'" in result.output
    assert "missing: duckdb" in result.stderr


def test_an_operator_that_does_not_run_is_told_with_both_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.ops.fbgemm, "asynchronous_complete_cumsum", lambda lengths: lengths, raising=False)
    check = doctor._fbgemm()
    assert check.state == "missing"
    assert "gave [2, 0, 3], not [0, 2, 2, 5]" in check.found
    assert "exactly one of the wheels" in check.remedy


def test_a_full_disk_and_too_many_threads_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: doctor.shutil._ntuple_diskusage(10, 9.5e9, 0.5e9))  # type: ignore[attr-defined]
    assert doctor._disk("nowhere/at/all").remedy.startswith("Free 1.5 GB")
    monkeypatch.setenv("OMP_NUM_THREADS", "512")
    assert doctor._threads().state == "note"


def test_a_cluster_that_is_not_there_is_told_with_what_to_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    result = CliRunner().invoke(app, ["doctor", "--cluster"])
    assert result.exit_code == 1
    assert "no cluster to talk to" in result.output
    assert "missing: api server" in result.stderr


def test_an_api_server_that_does_not_answer_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    # Port 9 of this machine: nobody listens.
    whole = {
        "apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}], "contexts": [context], "current-context": "c",
    }  # fmt: skip
    kubeconfig.write_text(json.dumps(whole))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    result = CliRunner().invoke(app, ["doctor", "--cluster"])
    assert result.exit_code == 1
    assert "http://127.0.0.1:9 could not be reached" in result.output
    assert "→ Check KUBECONFIG, its context and your network." in result.output
    assert "secret-token" not in result.output + result.stderr


@pytest.mark.parametrize("arguments", [["--pull"], ["--set", "launch.nodes=2"], ["--preset", "demo"], ["--config", "cluster.yaml"]])
def test_options_of_the_clusters_check_are_refused_without_it(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 2
    assert f"{arguments[0]} has no effect on a check of this machine; add --cluster" in result.stderr
