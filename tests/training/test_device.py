"""Each process of a node gets a GPU of its own where there are any, and a batch moves as a whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from clrflow.errors import BadInput
from clrflow.model.batch import Batch
from clrflow.steps import execute
from clrflow.training.device import group_backend, training_device
from tests.training import world


@pytest.fixture
def batch() -> Batch:
    from clrflow.model.batch import ItemRows

    items = ItemRows(**{field.name: torch.ones(2, 3) for field in dataclasses.fields(ItemRows)})
    tensors = {field.name: torch.ones(2, 3) for field in dataclasses.fields(Batch) if field.name != "items"}
    return Batch(items=items, **tensors)


def test_every_tensor_of_a_batch_moves(batch: Batch) -> None:
    moved = batch.to(torch.device("meta"))
    tensors = {**vars(moved), **{f"items.{name}": value for name, value in vars(moved.items).items()}}
    stayed = [name for name, value in tensors.items() if isinstance(value, torch.Tensor) and value.device.type != "meta"]
    assert stayed == []
    assert batch.history.device.type == "cpu"


def test_a_batch_that_is_there_already_is_not_copied(batch: Batch) -> None:
    assert batch.to(torch.device("cpu")).history is batch.history


def test_without_gpus_training_is_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert training_device() == torch.device("cpu")
    assert group_backend(training_device()) == "cpu:gloo"


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert training_device() == torch.device("cuda", 1)
    assert "nccl" in group_backend(training_device())
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(BadInput, match=r"3 processes on a node that has 2 GPU"):
        training_device()


@pytest.mark.gpu_torchrec
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_training_on_a_gpu_learns_what_training_on_the_cpu_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {}
    for visible in ("0", ""):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        folder = str(tmp_path / (visible or "cpu"))
        settings = world.config(training__schedule="single", training__num_processes=1, training__batch_size=8, model__dropout=0.0)
        manifest = execute("train", world.make_run(folder, settings).uri, world.make_inputs(folder)).manifest
        losses[visible] = manifest.metrics["loss"]
    assert losses["0"] == pytest.approx(losses[""], rel=0.02)
