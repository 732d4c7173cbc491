"""Checkpoints that are complete or absent, resumable at another world size (PyTorch Distributed Checkpoint).

A checkpoint is a folder `step-00001234/` whose `complete.json` is written last, by one process, after all have written their shards.
DCP's own `.metadata` is a pickle: it is read only if its hash is the one that `complete.json` recorded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from clrflow import storage
from clrflow.errors import ClrflowError
from clrflow.training import checkpoint_files
from clrflow.training.sharding import ShardedModel

COMPLETE, STEP = "complete.json", "step-"


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
    """The checkpoints below one folder that all processes reach: of a shared file system, or of an object store."""

    def __init__(self, folder: str, keep: int = 2):
        self.folder = storage.absolute(folder)
        self.keep = keep

    def save(self, model: ShardedModel, position: Position, name: str = "") -> None:
        """Save on all processes; returns when the checkpoint counts."""
        target = storage.join(self.folder, name or f"{STEP}{position.global_step:08d}")
        if dist.get_rank() == 0:
            storage.remove(target)  # what a killed save left
            storage.make_folder(target)
        dist.barrier()
        with _distributed():
            save(_state(model), storage_writer=checkpoint_files.writer(target))
        if dist.get_rank() == 0:
            note = dataclasses.asdict(position) | {"metadata_hash": _metadata_hash(target), "world_size": dist.get_world_size()}
            storage.write_json(storage.join(target, COMPLETE), note)
            if not name:
                self._remove_old()
        dist.barrier()

    def latest(self) -> str | None:
        """URI of the newest complete step checkpoint."""
        return next(iter(self._complete()), None)

    def load(self, model: ShardedModel, checkpoint: str | None = None, *, name: str = "") -> Position:
        """Load a checkpoint (by URI or by name) into the model and its optimizer, on all processes."""
        source, note = self._checked(checkpoint or storage.join(self.folder, name))
        for _, optimizer in model.optimizer.optimizers:
            if hasattr(optimizer, "init_state"):
                optimizer.init_state()  # a fresh AdamW has no entries, and DCP would silently load none
        state = _state(model)
        with _distributed():
            load(state, storage_reader=checkpoint_files.reader(source))
        model.wrapped.load_state_dict(state["model"])
        model.optimizer.load_state_dict(state["optimizer"])
        fields = {field.name for field in dataclasses.fields(Position)}
        position = Position(**{key: value for key, value in note.items() if key in fields})
        return dataclasses.replace(position, history=tuple(position.history))

    def load_tables(self, model: ShardedModel, *, name: str) -> None:
        """Load only the tables' rows of a named checkpoint; optimizer state and towers stay as they are."""
        source, _ = self._checked(storage.join(self.folder, name))
        tables = {key: value for key, value in model.wrapped.state_dict().items() if key.startswith("lookup.")}
        with _distributed():
            load({"model": tables}, storage_reader=checkpoint_files.reader(source))

    def _checked(self, source: str) -> tuple[str, dict[str, Any]]:
        """The folder and its note, once its pickled `.metadata` is known to be the one that was saved."""
        note = storage.read_json(storage.join(source, COMPLETE))
        if _metadata_hash(source) != note["metadata_hash"]:
            raise ClrflowError(
                f"{source}: .metadata is not the file that was saved; delete this checkpoint, the one before it will be used."
            )
        return source, note

    def remove_steps(self) -> None:
        """Delete the step checkpoints; named ones stay."""
        if dist.get_rank() == 0:
            for place in self._steps():
                _remove(place)
        dist.barrier()

    def _steps(self) -> list[str]:
        """Folders of step checkpoints, newest first, complete or not."""
        fs, path = storage.filesystem(self.folder)
        names = {storage.name_of(entry) for entry in fs.ls(path, detail=False)} if fs.exists(path) else set()
        return [storage.join(self.folder, name) for name in sorted(names, reverse=True) if name.startswith(STEP)]

    def _complete(self) -> list[str]:
        return [place for place in self._steps() if storage.exists(storage.join(place, COMPLETE))]

    def _remove_old(self) -> None:
        for place in self._complete()[self.keep :]:
            _remove(place)


def _remove(place: str) -> None:
    storage.remove(storage.join(place, COMPLETE))  # first: a half-deleted checkpoint must not count
    storage.remove(place)


def _state(model: ShardedModel) -> dict[str, Any]:
    return {"model": model.wrapped.state_dict(), "optimizer": model.optimizer.state_dict()}


def _metadata_hash(folder: str) -> str:
    return hashlib.blake2b(storage.read_bytes(storage.join(folder, ".metadata")), digest_size=16).hexdigest()


@contextlib.contextmanager
def _distributed() -> Iterator[None]:
    """DCP warns on each save that CPU tensors are saved from the CPU, and wraps what a process met in an exception that no handler sees."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except CheckpointException as failed:
            rank, (error, _) = next(iter(failed.failures.items()))
            if isinstance(error, ClrflowError):
                raise error from failed
            raise ClrflowError(f"the checkpoint failed on process {rank}: {type(error).__name__}: {error}") from failed
