"""The whole pipeline with its tables and its workspace on S3, by the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from clrflow import storage
from clrflow.index.bundle import load
from clrflow.index.export import copy_folder
from tests.pipelines.test_e2e import CLRFLOW, HEAVY, RUN, states

pytestmark = pytest.mark.e2e


def clrflow(folder: Path, *arguments: str) -> str:
    result = subprocess.run([CLRFLOW, *arguments], cwd=folder, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_a_run_whose_places_are_all_on_s3(s3: str, tmp_path: Path) -> None:
    tables, workspace = f"{s3}/my tables", f"{s3}/work"
    log = ("--users", "80", "--items", "150", "--days", "12", "--seed", "1", "--events-per-user", "30")
    clrflow(tmp_path, "data", "synthetic", "made", *log)
    copy_folder(str(tmp_path / "made"), tables)
    shutil.rmtree(tmp_path / "made")
    run = [{"w": workspace, "data.tables=tables": f"data.tables={tables}"}.get(part, part) for part in RUN]
    said = clrflow(tmp_path, *run, "--name", "first")
    assert "gate      publish:" in said
    assert storage.exists(f"{workspace}/runs/first/report.html")
    assert load(workspace).num_items == 150

    train = storage.read_json(f"{workspace}/runs/first/train.json")["uri"]
    assert storage.exists(f"{train}/checkpoints/co_train/best/complete.json")
    assert "training is finished and picked another one" in clrflow(tmp_path, "gc", workspace)

    found = clrflow(tmp_path, "query", workspace, "--user", "1", "--condition", "item:3", "-k", "5", "--json")
    assert len(json.loads(found)["answers"][0]["items"]) == 5
    again = clrflow(tmp_path, "run", "--resume", "first", "--workspace", workspace)
    assert {step: state for step, state in states(again).items() if step in HEAVY} == dict.fromkeys(HEAVY, "found")
    assert not list(tmp_path.rglob("*.parquet")), "data were written on this machine"
