"""Checkpoints that are complete or absent, resumable at another world size (PyTorch Distributed Checkpoint).

A checkpoint is a folder `step-00001234/` whose `complete.json` is written last, by one process, after all have written their shards.
DCP's own `.metadata` is a pickle: it is read only if its hash is the one that `complete.json` recorded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from clrflow import storage
from clrflow.errors import ClrflowError
from clrflow.training.sharding import ShardedModel

COMPLETE = "complete.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position:
    """How far training has come; with the seed this says which requests come next."""

    epoch: int = 0
    step: int = 0
    """Steps done in this epoch."""
    global_step: int = 0
    history: tuple[dict[str, Any], ...] = ()
    """Figures of the finished epochs."""


class Checkpoints:
    """The checkpoints below one folder of this machine or of a shared file system."""

    def __init__(self, folder: str, keep: int = 2):
        self.folder = storage.local_path(folder)
        self.keep = keep

    def save(self, model: ShardedModel, position: Position, name: str = "") -> None:
        """Save on all processes; returns when the checkpoint counts."""
        target = self.folder / (name or f"step-{position.global_step:08d}")
        if dist.get_rank() == 0:
            shutil.rmtree(target, ignore_errors=True)  # what a killed save left
            target.mkdir(parents=True)
        dist.barrier()
        with _quiet():
            save(_state(model), checkpoint_id=str(target))
        if dist.get_rank() == 0:
            note = dataclasses.asdict(position) | {"metadata_hash": _metadata_hash(target), "world_size": dist.get_world_size()}
            storage.write_json(str(target / COMPLETE), note)
            if not name:
                self._remove_old()
        dist.barrier()

    def latest(self) -> Path | None:
        """The newest complete step checkpoint."""
        return next(iter(self._complete()), None)

    def load(self, model: ShardedModel, checkpoint: Path | None = None, *, name: str = "") -> Position:
        """Load a checkpoint (by path or by name) into the model and its optimizer, on all processes."""
        source, note = self._checked(checkpoint or self.folder / name)
        for _, optimizer in model.optimizer.optimizers:
            if hasattr(optimizer, "init_state"):
                optimizer.init_state()  # a fresh AdamW has no entries, and DCP would silently load none
        state = _state(model)
        with _quiet():
            load(state, checkpoint_id=str(source))
        model.wrapped.load_state_dict(state["model"])
        model.optimizer.load_state_dict(state["optimizer"])
        fields = {field.name for field in dataclasses.fields(Position)}
        position = Position(**{key: value for key, value in note.items() if key in fields})
        return dataclasses.replace(position, history=tuple(position.history))

    def load_tables(self, model: ShardedModel, *, name: str) -> None:
        """Load only the tables' rows of a named checkpoint; optimizer state and towers stay as they are."""
        source, _ = self._checked(self.folder / name)
        tables = {key: value for key, value in model.wrapped.state_dict().items() if key.startswith("lookup.")}
        with _quiet():
            load({"model": tables}, checkpoint_id=str(source))

    def _checked(self, source: Path) -> tuple[Path, dict[str, Any]]:
        """The folder and its note, once its pickled `.metadata` is known to be the one that was saved."""
        note = storage.read_json(str(source / COMPLETE))
        if _metadata_hash(source) != note["metadata_hash"]:
            raise ClrflowError(
                f"{source}: .metadata is not the file that was saved; delete this checkpoint, the one before it will be used."
            )
        return source, note

    def remove_steps(self) -> None:
        """Delete the step checkpoints; named ones stay."""
        if dist.get_rank() == 0:
            for path in self.folder.glob("step-*"):
                shutil.rmtree(path, ignore_errors=True)
        dist.barrier()

    def _complete(self) -> list[Path]:
        return sorted((path.parent for path in self.folder.glob(f"step-*/{COMPLETE}")), reverse=True)

    def _remove_old(self) -> None:
        for path in self._complete()[self.keep :]:
            (path / COMPLETE).unlink()  # first: a half-deleted checkpoint must not count
            shutil.rmtree(path, ignore_errors=True)


def _state(model: ShardedModel) -> dict[str, Any]:
    return {"model": model.wrapped.state_dict(), "optimizer": model.optimizer.state_dict()}


def _metadata_hash(folder: Path) -> str:
    return hashlib.blake2b((folder / ".metadata").read_bytes(), digest_size=16).hexdigest()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """DCP warns on each save that CPU tensors are saved from the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
