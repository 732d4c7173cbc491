"""The whole train step with real processes: schedules, vectors, serving tables, resuming after kill -9."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load

from clrflow import storage
from clrflow.errors import ConfigError
from clrflow.manifest import Manifest
from clrflow.serving.tables import load_model
from clrflow.steps import Run, execute
from clrflow.training import job
from clrflow.training.catalogue import load_catalogue
from clrflow.training.checkpoints import Checkpoints
from clrflow.training.step import without_times
from clrflow.training.vectors import item_tokens_and_vectors
from tests.training import world


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Two processes, all schedules, three epochs."""
    folder = str(tmp_path_factory.mktemp("trained"))
    settings = world.config(training__schedule="auto", training__epochs=3, training__num_processes=2, training__batch_size=8)
    run = world.make_run(folder, settings)
    return execute("train", run.uri, world.make_inputs(folder)).manifest


def test_auto_tries_three_schedules_and_validation_picks_the_best(trained: Manifest) -> None:
    curves = storage.read_json(trained.output("curves"))
    scores = {name: result["score"] for name, result in curves["schedules"].items()}
    assert scores.keys() == {"single", "co_train", "delayed"}
    assert scores[curves["picked"]] == max(scores.values())
    assert [figures["frozen"] for figures in curves["schedules"]["delayed"]["history"]] == [True, True, False]
    assert curves["schedules"]["single"]["history"] == curves["schedules"]["co_train"]["history"][:1]
    assert trained.facts["schedule"] == curves["picked"]


def test_all_items_have_a_unit_vector_in_the_order_of_their_ids(trained: Manifest) -> None:
    table = pq.read_table(trained.output("item_vectors"))
    assert table["item_id"].to_pylist() == world.ITEM_IDS.tolist()
    vectors = np.stack(table["vector"].to_numpy())
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_held_out_requests_have_a_vector_for_each_condition_and_the_unconditional_one(trained: Manifest) -> None:
    table = pq.read_table(trained.output("query_vectors")).to_pandas()
    conditions = table.groupby("request_id")["condition"].apply(sorted)
    held_out = [
        user * world.NUM_REQUESTS + at for user in range(world.NUM_USERS) for at in (world.NUM_REQUESTS - 2, world.NUM_REQUESTS - 1)
    ]
    assert conditions.index.tolist() == held_out
    assert all(found == [-1, 0, 1, 2] for found in conditions)


def test_serving_tables_hold_no_pickle_and_every_row_of_both_processes(trained: Manifest) -> None:
    files = storage.list_files(trained.output("serving"))
    assert {Path(file).suffix for file in files} == {".json", ".safetensors"}
    model = load_model(trained.output("serving"), tokenizer_hash="abc")
    assert model.item_tokens.keys.tolist() == world.ITEM_IDS.tolist()
    assert model.interests.keys.tolist() == [0, 1, 2]
    assert model.boards.keys.tolist() == list(range(16))
    shard = load(storage.read_bytes(storage.join(trained.output("serving"), "item_tokens-00001.safetensors")))
    assert shard["values"].dtype == np.int8


def test_a_second_run_finds_the_result(trained: Manifest) -> None:
    run = storage.join(trained.uri, "..", "..", "..", "runs", "test")
    spec = storage.read_json(storage.join(trained.uri, "job.json"))
    again = execute("train", run, spec["inputs"])
    assert again.reused
    assert again.manifest.fingerprint == trained.fingerprint


def test_equal_trainings_have_equal_fingerprints_however_long_they_took(trained: Manifest) -> None:
    curves = storage.read_json(trained.output("curves"))
    slower = json.loads(json.dumps(curves))
    slower["export_s"] += 1
    slower["schedules"]["co_train"]["history"][0]["seconds"] += 1
    assert without_times(slower) == without_times(curves)
    slower["schedules"]["co_train"]["history"][0]["loss"] += 1
    assert without_times(slower) != without_times(curves)


def test_one_and_two_processes_hold_the_same_items_and_queries(trained: Manifest, tmp_path: Path) -> None:
    run = world.make_run(str(tmp_path), world.config(training__epochs=1))
    alone = execute("train", run.uri, world.make_inputs(str(tmp_path))).manifest
    for name, keys in (("item_vectors", ["item_id"]), ("query_vectors", ["request_id", "condition"])):
        one, two = (pq.read_table(manifest.output(name), columns=keys).to_pandas() for manifest in (alone, trained))
        assert one.sort_values(keys).values.tolist() == two.sort_values(keys).values.tolist()


@pytest.mark.usefixtures("group")
def test_a_checkpoint_of_two_processes_loads_on_one_and_gives_the_same_vectors(trained: Manifest) -> None:
    run = Run.load(storage.join(trained.uri, "..", "..", "..", "runs", "test"))
    inputs = {name: Manifest.load(uri) for name, uri in storage.read_json(storage.join(trained.uri, "job.json"))["inputs"].items()}
    catalogue = load_catalogue(inputs["validate_data"], inputs["bootstrap"], inputs["semantic_ids"], run.config.model)
    model = job.build(run, catalogue)
    path = Path(storage.join(trained.uri, trained.facts["checkpoint"]))
    Checkpoints(str(path.parent)).load(model, name=path.name)
    model.wrapped.eval()
    _, vectors = item_tokens_and_vectors(model, catalogue)
    written = np.stack(pq.read_table(trained.output("item_vectors"))["vector"].to_numpy())
    np.testing.assert_allclose(vectors, written, atol=1e-6)


def test_a_trained_result_can_be_the_frozen_table_of_the_next(trained: Manifest, tmp_path: Path) -> None:
    settings = world.config(training__schedule="delayed", training__epochs=2, training__frozen_table_from=trained.uri)
    manifest = execute("train", world.make_run(str(tmp_path), settings).uri, world.make_inputs(str(tmp_path))).manifest
    curves = storage.read_json(manifest.output("curves"))
    assert [figures["frozen"] for figures in curves["schedules"]["delayed"]["history"]] == [True, False]


def test_frozen_tables_of_other_ids_are_refused_with_both_tokenizers(trained: Manifest, tmp_path: Path) -> None:
    settings = world.config(training__schedule="delayed", training__epochs=2, training__frozen_table_from=trained.uri)
    inputs = world.make_inputs(str(tmp_path))
    other = Manifest.load(inputs["semantic_ids"])
    dataclasses.replace(other, facts={**other.facts, "tokenizer_hash": "def"}).save()
    with pytest.raises(
        ConfigError, match=r"belong to tokenizer abc, and this run's semantic ids are of def.*semantic_ids\.tokenizer=published"
    ):
        execute("train", world.make_run(str(tmp_path), settings).uri, inputs)


def test_frozen_tables_from_nowhere_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="frozen_table_from is empty"):
        world.config(training__schedule="delayed")
    published = world.config(training__schedule="delayed", training__frozen_table_from="published")
    with pytest.raises(ConfigError, match="nothing was published yet"):
        execute("train", world.make_run(str(tmp_path), published).uri, world.make_inputs(str(tmp_path)))


def test_after_kill_9_the_same_command_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    settings = world.config(training__epochs=4, training__patience=4, training__checkpoint_every_steps=1)
    run = world.make_run(str(tmp_path), settings)
    inputs = world.make_inputs(str(tmp_path))
    code = f"from clrflow.steps import execute; execute('train', {run.uri!r}, {inputs!r})"
    first = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    _wait_for_checkpoint(tmp_path, step=3)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not list(tmp_path.glob("steps/train/*/manifest.json"))

    short = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=300, check=False)
    assert short.returncode == 0, short.stderr
    resumed = next(line for line in short.stdout.splitlines() if "going on from step-" in line)
    assert int(resumed.split("step-")[1].split(",")[0]) >= 3
    (manifest,) = tmp_path.glob("steps/train/*/manifest.json")
    history: list[dict[str, Any]] = json.loads((manifest.parent / "curves.json").read_text())["schedules"]["co_train"]["history"]
    assert [figures["epoch"] for figures in history] == list(range(1, 5))


def test_sigterm_makes_all_processes_save_the_same_step_and_the_same_command_goes_on(tmp_path: Path) -> None:
    settings = world.config(training__epochs=200, training__patience=200, training__num_processes=2, training__batch_size=8)
    run = world.make_run(str(tmp_path), settings)
    code = f"from clrflow.steps import execute; execute('train', {run.uri!r}, {world.make_inputs(str(tmp_path))!r})"
    step = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    _wait_for_checkpoint(tmp_path, step=7)  # the one at the first epoch's end
    step.send_signal(signal.SIGTERM)
    _, errors = step.communicate(timeout=120)
    assert step.returncode != 0
    assert "told to stop in epoch" in errors
    said = int(errors.split("after step ")[1].split(";")[0])
    saved = max(int(path.parent.name.split("-")[1]) for path in tmp_path.glob("steps/train/*/checkpoints/co_train/step-*/complete.json"))
    assert saved == said


def _wait_for_checkpoint(folder: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while not any(
        int(path.parent.name.split("-")[1]) >= step for path in folder.glob("steps/train/*/checkpoints/co_train/step-*/complete.json")
    ):
        assert time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.05)
