"""Unit content vectors of engaged items as two arrays on disk, which the workers of a bucket map into memory instead of carrying them along."""

from __future__ import annotations

import functools
import io
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clrflow import storage
from clrflow.data.tables import iter_batches
from clrflow.errors import DataError

IDS, VECTORS = "item_ids.npy", "vectors.npy"


def write_content_vectors(items_uri: str, wanted: npt.NDArray[np.int64], folder: str) -> None:
    """From clean items (sorted by item_id) to `folder`: ids [N] int64 and unit vectors [N, D] float32 of those among `wanted` (sorted).

    Memory: these vectors twice.
    """
    ids, vectors = [], []
    for batch in iter_batches(items_uri, ["item_id", "content_embedding"]):
        of_batch = batch.column("item_id").to_numpy()
        is_wanted = np.isin(of_batch, wanted, assume_unique=True)
        if not is_wanted.any():
            continue
        ids.append(of_batch[is_wanted])
        chosen = batch.column("content_embedding").filter(pa.array(is_wanted))
        rows = chosen.flatten().to_numpy(zero_copy_only=False).astype(np.float32, copy=False).reshape(len(chosen), -1)
        vectors.append(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
    all_ids = np.concatenate(ids)
    if not (np.diff(all_ids) > 0).all():
        raise DataError(f"{items_uri}: items are not sorted by item_id, or one is there twice; run validate_data again.")
    for name, array in ((IDS, all_ids), (VECTORS, np.concatenate(vectors))):
        stream = io.BytesIO()
        np.save(stream, array, allow_pickle=False)
        storage.write_bytes(storage.join(folder, name), stream.getvalue())


@functools.lru_cache(maxsize=1)
def content_vectors(folder: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """What write_content_vectors wrote; local files are mapped, others fetched once a process."""
    if storage.is_local(folder):
        place = storage.local_path(folder)
    else:
        place = Path(tempfile.mkdtemp(prefix="clrflow-vectors-"))
        for name in (IDS, VECTORS):
            (place / name).write_bytes(storage.read_bytes(storage.join(folder, name)))
    ids, vectors = (np.load(place / name, mmap_mode="r", allow_pickle=False) for name in (IDS, VECTORS))
    return ids, vectors
