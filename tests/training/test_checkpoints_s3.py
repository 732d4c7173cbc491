"""Checkpoints on an object store: complete or absent there too, and an error there is told as everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from clrflow import storage
from clrflow.data.tables import read_table
from clrflow.errors import BadInput, ClrflowError
from clrflow.manifest import Manifest
from clrflow.steps import execute
from clrflow.training import job
from clrflow.training.catalogue import load_catalogue
from clrflow.training.checkpoints import COMPLETE, Checkpoints, Position
from clrflow.training.loop import Loop
from clrflow.training.vectors import item_tokens_and_vectors
from tests.object_store import ObjectStoreServer, environment, use
from tests.training import world
from tests.training.test_loop import dense_state, make_loop, snapshot

pytestmark = pytest.mark.usefixtures("group")


@pytest.fixture
def loop(tmp_path: Path, s3: str) -> Loop:
    made = make_loop(tmp_path, frozen=(False,))
    made.checkpoints = Checkpoints(f"{s3}/check points/test")
    return made


def test_what_was_saved_is_loaded(loop: Loop, tmp_path: Path) -> None:
    position = loop._epoch(Position())
    loop.checkpoints.save(loop.model, position)
    fresh = make_loop(tmp_path, frozen=(False,))
    assert snapshot(fresh.model, "lookup") != snapshot(loop.model, "lookup")
    found = loop.checkpoints.load(fresh.model, loop.checkpoints.latest())
    assert (found.epoch, found.global_step) == (1, position.global_step)
    for part in ("lookup", "tower"):
        assert snapshot(fresh.model, part) == snapshot(loop.model, part)
    saved, restored = dense_state(loop.model), dense_state(fresh.model)
    assert all(torch.equal(saved[name], restored[name]) for name in saved)
    again = make_loop(tmp_path, frozen=(False,))
    loop.checkpoints.load_tables(again.model, name="best")
    assert {name: value for name, value in snapshot(again.model, "lookup").items() if name.endswith("weight")} == {
        name: value for name, value in snapshot(loop.model, "lookup").items() if name.endswith("weight")
    }


def test_a_half_written_checkpoint_is_not_taken_for_whole_and_old_ones_go(loop: Loop) -> None:
    for step in (1, 2, 3):
        loop.checkpoints.save(loop.model, Position(global_step=step))
    newest = loop.checkpoints.latest()
    assert newest == f"{loop.checkpoints.folder}/step-00000003"
    storage.remove(storage.join(newest, COMPLETE))
    assert loop.checkpoints.latest() == f"{loop.checkpoints.folder}/step-00000002"
    assert not storage.exists(f"{loop.checkpoints.folder}/step-00000001")
    loop.checkpoints.remove_steps()
    assert loop.checkpoints.latest() is None
    assert not storage.exists(newest)


def test_a_checkpoint_whose_pickled_part_was_changed_is_refused(loop: Loop) -> None:
    loop.checkpoints.save(loop.model, Position(global_step=1))
    newest = loop.checkpoints.latest()
    assert newest is not None
    storage.write_bytes(storage.join(newest, ".metadata"), b"another pickle")
    with pytest.raises(ClrflowError, match="not the file that was saved"):
        loop.checkpoints.load(loop.model, newest)


def test_a_place_that_can_not_be_written_is_named(loop: Loop, s3_server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    use(environment("reader", s3_server.endpoint), monkeypatch.setenv)
    with pytest.raises(BadInput, match=r"check points/test/step-00000001\S*: can't be (written|removed): access denied"):
        loop.checkpoints.save(loop.model, Position(global_step=1))


def test_two_processes_write_one_checkpoint_and_one_process_reads_it(s3: str, tmp_path: Path) -> None:
    inputs = world.make_inputs(str(tmp_path))
    run = world.make_run(s3, world.config(training__num_processes=2, training__epochs=1, training__batch_size=8))
    trained = execute("train", run.uri, inputs).manifest
    best = storage.join(trained.uri, trained.facts["checkpoint"])
    assert storage.read_json(storage.join(best, COMPLETE))["world_size"] == 2
    assert storage.size_bytes(best) > 10_000

    results = {name: Manifest.load(uri) for name, uri in inputs.items()}
    catalogue = load_catalogue(results["validate_data"], results["bootstrap"], results["semantic_ids"], run.config.model)
    model = job.build(run, catalogue)
    Checkpoints(storage.parent_of(best)).load(model, name=storage.name_of(best))
    model.wrapped.eval()
    _, vectors = item_tokens_and_vectors(model, catalogue)
    written = np.stack(read_table(trained.output("item_vectors"))["vector"].to_numpy())
    np.testing.assert_allclose(vectors, written, atol=1e-6)
