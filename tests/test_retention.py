"""clrflow gc: what nothing needs goes, what a run, a published version or a running step needs stays; a real workspace on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clrflow import retention, storage
from clrflow.configure import configure_run
from clrflow.errors import BadInput
from clrflow.index.publish import publish_version
from clrflow.manifest import Manifest, Output
from clrflow.run_names import run_of_job
from pipelines.cli import app

DAY = 86400.0


class Workspace:
    """Runs whose steps left small files, as the real ones do."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.uri = str(folder)

    def run(self, name: str, *, days_ago: float, steps: dict[str, str], end: str = "publish", overrides: str = "", job: str = "") -> str:
        """A run whose steps' results have these keys; `end` is `publish`, `failure` or "" (unfinished)."""
        run = configure_run(
            preset="small", workspace=self.uri, run_name="" if job else name, overrides=f"data.tables=/t {overrides}", job=job
        )  # fmt: skip
        for step, key in steps.items():
            self.result(step, key)
            storage.write_json(f"{run.uri}/{step}.json", {"uri": f"{self.uri}/steps/{step}/{key}", "reused": False})
        if end:
            storage.write_json(f"{run.uri}/{end}.json", {"uri": f"{self.uri}/steps/publish/p", "reused": False})
        then = time.time() - days_ago * DAY
        os.utime(Path(run.uri) / "run.json", (then, then))
        return storage.name_of(run.uri)

    def result(self, step: str, key: str, inputs: dict[str, str] | None = None) -> str:
        folder = f"{self.uri}/steps/{step}/{key}"
        storage.write_text(f"{folder}/data.txt", f"{step} {key}")
        facts: dict[str, object] = {"n": key}
        if step == "train":
            for checkpoint in ("step-00000001", "best"):
                storage.write_text(f"{folder}/checkpoints/co_train/{checkpoint}/shard.txt", "x" * 1000)
            facts["checkpoint"] = "checkpoints/co_train/best"
        Manifest(
            step=step, key=key, uri=folder, outputs={"data": Output.of(f"{folder}/data.txt")}, metrics={}, facts=facts, config={},
            inputs=inputs or {}, step_version=1,
        ).save()  # fmt: skip
        return folder

    def publish(self, train_key: str) -> None:
        train = Manifest.load(f"{self.uri}/steps/train/{train_key}").fingerprint
        storage.write_text(f"{self.uri}/bundle/index.txt", "index")
        publish_version(f"{self.uri}/published", {"": f"{self.uri}/bundle"}, fingerprint="f" * 20, train=train, champion="")
        storage.remove(f"{self.uri}/bundle")

    def there(self) -> set[str]:
        return {f"{path.parent.name}/{path.name}" for path in self.folder.glob("steps/*/*")} | {
            path.name for path in self.folder.glob("runs/*")
        }


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path)
    made.run("old", days_ago=40, steps={"train": "t1", "gate": "g1"})
    made.run("older", days_ago=50, steps={"train": "t0", "gate": "g1"}, end="failure")
    made.run("new", days_ago=1, steps={"train": "t2", "gate": "g1"})
    return made


def gc(workspace: Workspace, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["gc", workspace.uri, *arguments])


def test_without_yes_everything_is_listed_and_nothing_removed(workspace: Workspace) -> None:
    before = workspace.there()
    said = gc(workspace, "--keep-runs", "1")
    assert said.exit_code == 0, said.output
    for what in ("runs/old", "runs/older", "steps/train/t0", "steps/train/t1", "steps/train/t2/checkpoints/co_train/step-00000001"):
        assert f"  {what}  " in said.output
    assert said.output.splitlines()[-1].startswith("would remove: 5 thing(s)")
    assert workspace.there() == before


def test_yes_removes_old_runs_and_the_results_that_only_they_used(workspace: Workspace) -> None:
    said = gc(workspace, "--keep-runs", "1", "--yes", "--json")
    assert workspace.there() == {"new", "train/t2", "gate/g1"}
    told = json.loads(said.output)
    assert told["removed"]
    assert told["kept_runs"] == ["new"]
    # Two trainings with their two checkpoints of 1,000 bytes, and one checkpoint of the one that stays.
    assert told["bytes"] > 5000
    assert not any((workspace.folder / "steps/train/t2/checkpoints/co_train").glob("step-*"))
    assert (workspace.folder / "steps/train/t2/checkpoints/co_train/best/shard.txt").exists()


def test_young_runs_stay_however_many_and_a_second_pass_finds_nothing(workspace: Workspace) -> None:
    retention.remove(retention.plan(workspace.uri, keep_runs=0, keep_days=45))
    assert {"new", "old"} <= workspace.there()
    assert "older" not in workspace.there()
    assert retention.plan(workspace.uri, keep_runs=0, keep_days=45).remove == ()


def test_what_the_published_version_was_trained_by_stays_for_the_next_warm_start(workspace: Workspace) -> None:
    workspace.publish("t1")
    retention.remove(retention.plan(workspace.uri, keep_runs=1, keep_days=0))
    assert workspace.there() == {"new", "train/t1", "train/t2", "gate/g1"}
    assert (workspace.folder / "steps/train/t1/checkpoints/co_train/best/shard.txt").exists()


def test_the_tokenizer_of_the_published_version_stays_as_the_next_ids_are_added_to_it(workspace: Workspace) -> None:
    tokenizer = Manifest.load(workspace.result("semantic_ids", "s1")).fingerprint
    workspace.result("semantic_ids", "s2")
    workspace.result("train", "t3", {"semantic_ids": tokenizer})
    workspace.publish("t3")
    retention.remove(retention.plan(workspace.uri, keep_runs=1, keep_days=0))
    assert workspace.there() == {"new", "train/t2", "train/t3", "semantic_ids/s1", "gate/g1"}


def test_tokenizers_that_a_kept_run_names_stay(workspace: Workspace) -> None:
    for key in ("s1", "s2", "s3"):
        workspace.result("semantic_ids", key)
    steps = f"{workspace.uri}/steps/semantic_ids"
    workspace.run("kept", days_ago=0, steps={}, overrides=f"semantic_ids.tokenizer={steps}/s1/tokenizer semantic_ids.start_from={steps}/s2")
    retention.remove(retention.plan(workspace.uri, keep_runs=1, keep_days=0))
    assert workspace.there() == {"kept", "semantic_ids/s1", "semantic_ids/s2"}


def test_the_source_of_frozen_tables_that_a_kept_run_names_stays(workspace: Workspace) -> None:
    source = f"training.schedule=frozen training.frozen_table_from={workspace.uri}/steps/train/t0"
    workspace.run("frozen", days_ago=0, steps={}, overrides=source)
    retention.remove(retention.plan(workspace.uri, keep_runs=1, keep_days=0))
    assert workspace.there() == {"frozen", "train/t0"}


def test_an_unfinished_run_stays_for_a_week_as_it_may_be_at_work(workspace: Workspace) -> None:
    workspace.run("at-work", days_ago=6, steps={"bootstrap": "b1"}, end="")
    workspace.run("abandoned", days_ago=8, steps={"bootstrap": "b2"}, end="")
    retention.remove(retention.plan(workspace.uri, keep_runs=0, keep_days=0))
    assert workspace.there() == {"at-work", "bootstrap/b1"}


def test_what_a_running_step_holds_stays_and_is_named(workspace: Workspace) -> None:
    held = f"{workspace.uri}/steps/train/t0"
    code = f"import time\nfrom clrflow import storage\nwith storage.exclusive({held!r}):\n    print('held', flush=True)\n    time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        said = gc(workspace, "--keep-runs", "1", "--yes")
        process.kill()
    assert "held by a running step: steps/train/t0" in said.output
    assert "train/t0" in workspace.there()
    assert "train/t1" not in workspace.there()


def test_an_unfinished_result_goes_after_a_week_without_a_change(workspace: Workspace) -> None:
    file = workspace.folder / "steps/train/half/checkpoints/shard.txt"
    storage.write_text(str(file), "x")
    assert not [found for found in retention.plan(workspace.uri).remove if found.kind == "unfinished"]
    os.utime(file, (0, 0))
    (found,) = [found for found in retention.plan(workspace.uri).remove if found.kind == "unfinished"]
    assert found.uri == f"{workspace.uri}/steps/train/half"


def test_the_pointer_from_kubeflows_id_goes_with_its_run(workspace: Workspace) -> None:
    name = workspace.run("", days_ago=60, steps={}, job="0f9a")
    assert run_of_job(workspace.uri, "0f9a") == name
    retention.remove(retention.plan(workspace.uri, keep_runs=3))
    assert run_of_job(workspace.uri, "0f9a") == ""


def test_a_folder_that_is_no_workspace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no runs, so it is no workspace"):
        retention.plan(str(tmp_path))
