"""Distributed checkpoints on object stores: PyTorch's reader and writer of files, their files opened through clrflow.storage.

Every process streams its own shard to the store and reads only the ranges that it needs, so no disk is asked for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter

from clrflow import storage

Name = str | os.PathLike[str]


class _Store(FileSystem):
    """What PyTorch asks of a file system, by URI."""

    @contextlib.contextmanager
    def create_stream(self, path: Name, mode: str) -> Iterator[Any]:
        if "w" in mode:
            with storage.open_write(str(path)) as stream:
                yield stream
            return
        fs, place = storage.filesystem(str(path))
        with fs.open(place, mode) as stream:
            yield stream

    def concat_path(self, path: Name, suffix: str) -> Name:
        return storage.join(str(path), suffix)

    def init_path(self, path: Name) -> Name:
        return path

    def rename(self, path: Name, new_path: Name) -> None:
        storage.copy_file(str(path), str(new_path))
        storage.remove(str(path))

    def mkdir(self, path: Name) -> None:
        storage.make_folder(str(path))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Name) -> bool:
        return not storage.is_local(str(checkpoint_id))

    def exists(self, path: Name) -> bool:
        return storage.exists(str(path))

    def rm_file(self, path: Name) -> None:
        storage.remove(str(path))


def writer(uri: str) -> FileSystemWriter:
    """What saves a checkpoint at a URI, local or not."""
    made = FileSystemWriter(uri)
    if not storage.is_local(uri):
        made.fs, made.path = _Store(), uri
    return made


def reader(uri: str) -> FileSystemReader:
    """What loads a checkpoint from a URI, local or not."""
    made = FileSystemReader(uri)
    if not storage.is_local(uri):
        made.fs, made.path = _Store(), uri
    return made
