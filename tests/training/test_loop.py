"""The loop on a real sharded model: freezing, resuming, half-written checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from clrflow import storage
from clrflow.contracts import REQUESTS
from clrflow.errors import ClrflowError
from clrflow.manifest import Manifest
from clrflow.training import job
from clrflow.training.batches import Collator, EpochPlan
from clrflow.training.catalogue import load_catalogue
from clrflow.training.checkpoints import COMPLETE, Checkpoints, Position
from clrflow.training.loop import Loop, Preempted, StopReason, StopSignal
from clrflow.training.requests import load_requests
from clrflow.training.schedules import Schedule
from clrflow.training.sharding import ShardedModel, local_rows
from tests.training import world

pytestmark = pytest.mark.usefixtures("group")


def make_loop(folder: Path, frozen: tuple[bool, ...], **overrides: Any) -> Loop:
    settings = world.config(**overrides)
    run = world.make_run(str(folder), settings)
    inputs = {name: Manifest.load(uri) for name, uri in world.make_inputs(str(folder)).items()}
    catalogue = load_catalogue(inputs["validate_data"], inputs["bootstrap"], inputs["semantic_ids"], settings.model)
    requests = load_requests(inputs["bootstrap"].output("requests"), catalogue, settings.data, settings.model)
    return Loop(
        schedule=Schedule(name="test", frozen=frozen),
        settings=settings.training,
        model=job.build(run, catalogue),
        requests=requests,
        catalogue=catalogue,
        collator=Collator(requests, catalogue, settings.training.num_negatives),
        plan=EpochPlan(rows=requests.of_split("train"), batch_size=16, world_size=1, seed=0),
        checkpoints=Checkpoints(str(folder / "checkpoints")),
        stop=StopSignal(),
    )


def snapshot(model: ShardedModel, part: str) -> dict[str, bytes]:
    """Bytes of the tables' weights and optimizer state (`lookup`) or of the towers' weights (`tower`)."""
    found: dict[str, torch.Tensor] = {name: value for name, value in model.wrapped.state_dict().items() if part in name}
    if part == "lookup":
        for name, state in model.wrapped.fused_optimizer.state_dict()["state"].items():
            found |= {f"{name}.{key}": value for key, value in state.items()}
    return {name: local_rows(value).detach().contiguous().numpy().tobytes() for name, value in found.items()}


def test_frozen_epochs_leave_weights_and_optimizer_state_identical_and_the_first_step_after_changes_both(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, frozen=(True, True, False))
    tables, towers = snapshot(loop.model, "lookup"), snapshot(loop.model, "tower")
    position = loop._epoch(Position())
    position = loop._epoch(position)
    assert snapshot(loop.model, "lookup") == tables
    assert snapshot(loop.model, "tower") != towers
    loop.model.module.frozen_tables = False
    loop._learn(2, 0, next(loop.plan.batches(2, rank=0))[1], _Meter(), frozen=False)
    after = snapshot(loop.model, "lookup")
    changed = {name for name in tables if after[name] != tables[name]}
    assert {name for name in changed if "momentum" in name or "sum" in name or "exp" in name}, "the optimizer's state must move too"
    assert any(name.endswith("item.weight") for name in changed)


class _Meter:
    """Takes what the loop measures and shows nothing."""

    def add(self, *_: object) -> None: ...


def test_training_learns_the_two_interests(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, frozen=(False,) * 8, training__dense_learning_rate=0.01, training__patience=8)
    history = loop.run()
    assert history[-1]["loss"] < history[0]["loss"] * 0.9
    # 28 items are unseen, 8 of the user's interest, 3 of them relevant. Any order of all 28 has a mean NDCG@10 of about 0.2; the 8
    # first, in any order, about 0.6.
    assert max(figures["ndcg"] for figures in history) > 0.35


def test_a_run_that_was_stopped_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = make_loop(tmp_path / "whole", frozen=(False, False))
    expected = whole.run()

    stopped = make_loop(tmp_path / "stopped", frozen=(False, False))
    learn, steps = stopped._learn, 0

    def learn_and_stop(*arguments: Any, **named: Any) -> None:
        nonlocal steps
        learn(*arguments, **named)
        steps += 1
        stopped.stop.received = StopReason(steps == 10)  # seven steps an epoch: in the middle of the second

    stopped._learn = learn_and_stop  # type: ignore[method-assign]
    with pytest.raises(Preempted, match="epoch 2"):
        stopped.run()
    again = make_loop(tmp_path / "stopped", frozen=(False, False))
    got = again.run()
    assert got[-1]["recall"] == expected[-1]["recall"]
    assert snapshot(again.model, "lookup") == snapshot(whole.model, "lookup")
    assert snapshot(again.model, "tower") == snapshot(whole.model, "tower")


def test_a_half_written_checkpoint_is_not_taken_for_whole(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, frozen=(False,))
    loop._learn(0, 0, next(loop.plan.batches(0, rank=0))[1], _Meter(), frozen=False)
    loop.checkpoints.save(loop.model, Position(global_step=1))
    loop.checkpoints.save(loop.model, Position(global_step=2))
    newest = loop.checkpoints.latest()
    assert newest is not None
    assert storage.name_of(newest) == "step-00000002"
    storage.remove(storage.join(newest, COMPLETE))  # killed before the end
    older = loop.checkpoints.latest()
    assert older is not None
    assert storage.name_of(older) == "step-00000001"
    assert loop.checkpoints.load(loop.model, older).global_step == 1


def test_a_checkpoint_whose_pickled_part_was_changed_is_refused(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, frozen=(False,))
    loop.checkpoints.save(loop.model, Position(global_step=1))
    newest = loop.checkpoints.latest()
    assert newest is not None
    storage.write_bytes(storage.join(newest, ".metadata"), b"another pickle")
    with pytest.raises(ClrflowError, match="not the file that was saved"):
        loop.checkpoints.load(loop.model, newest)


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, frozen=(False,))
    for step in range(4):
        loop.checkpoints.save(loop.model, Position(global_step=step))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000003"]


def test_a_loaded_checkpoint_holds_the_towers_optimizer_too(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, frozen=(False,))
    loop._epoch(Position())
    saved = {name: value.clone() for name, value in dense_state(loop.model).items()}
    fresh = make_loop(tmp_path, frozen=(False,))
    latest = fresh.checkpoints.latest()
    assert latest is not None
    fresh.checkpoints.load(fresh.model, latest)
    restored = dense_state(fresh.model)
    assert saved.keys() == restored.keys()
    assert all(torch.equal(saved[name], restored[name]) for name in saved)
    assert any(value.abs().sum() > 0 for value in restored.values())


def dense_state(model: ShardedModel) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}": value
        for name, state in model.dense.state_dict()["state"].items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    }


def test_one_request_and_requests_without_history_give_finite_losses(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, frozen=(False,))
    first_requests = torch.arange(0, loop.requests.request_ids.shape[0], world.NUM_REQUESTS).numpy()
    assert (loop.requests.history.lengths[first_requests] == 0).all()
    for rows in (first_requests[:1], first_requests, loop.plan.rows[:3]):
        loss, _ = loop.model.wrapped(loop.collator.training(rows, np.random.default_rng(0)))
        assert torch.isfinite(loss)
        loss.backward()


def test_a_job_without_training_requests_says_what_to_widen(tmp_path: Path) -> None:
    inputs = world.make_inputs(str(tmp_path))
    run = world.make_run(str(tmp_path), world.config())
    manifest = Manifest.load(inputs["bootstrap"])
    shutil.rmtree(storage.local_path(manifest.output("requests")))
    storage.make_folder(manifest.output("requests"))
    pq.write_table(REQUESTS.empty_table(), storage.join(manifest.output("requests"), "part-00000.parquet"))
    with pytest.raises(ClrflowError, match="0 training requests"):
        job.train_job(job.JobSpec(run=run.uri, inputs=inputs, folder=str(tmp_path / "out")))
