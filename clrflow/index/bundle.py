"""The exported bundle as its readers see it: checked when loaded, searched by vectors, original ids out. Needs no torch.

bundle = load("workspace/published")        # or a version's folder, a workspace, an export step's result
ids, scores = bundle.search(queries, k=10, exclude=[seen_ids])
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from clrflow import storage
from clrflow.data.tables import read_table
from clrflow.errors import BadInput, ClrflowError
from clrflow.index.published import FOLDER, POINTER, read_published

Array = np.ndarray[Any, Any]

SCHEMA_VERSION = 1
METRIC = "inner_product"
INFO, INDEX, MODEL = "index.json", "index.faiss", "model"
TABLES = ("items", "interests", "boards", "user_states")
NO_ITEM = -np.inf
"""Score of a place for which there is no item; its id is -1, which may also be a real item's id, so look at the score."""
_LEAST = -1e30
_faiss: Any = faiss  # its stubs know neither all classes nor their arguments
_ATTEMPTS = 5
"""Times that a version which vanished while it was read is looked up anew."""


class Bundle:
    """A loaded bundle; safe to search from several threads."""

    def __init__(self, uri: str, info: dict[str, Any], index: Any):
        self.uri, self.info, self._index = uri, info, index
        self.dim: int = info["dim"]
        self.num_items: int = info["num_items"]

    @property
    def model_uri(self) -> str:
        """Folder of what turns requests into vectors, as train wrote it."""
        return storage.join(self.uri, MODEL)

    def table(self, name: str) -> pa.Table:
        """items, interests, boards or user_states."""
        if name not in TABLES:
            raise BadInput(f"table {name!r} is not in a bundle; it has {', '.join(TABLES)}.")
        return read_table(storage.join(self.uri, f"{name}.parquet"))

    def search(self, vectors: Array, k: int, exclude: Sequence[Array] | None = None) -> tuple[Array, Array]:
        """The k nearest items of each query.

        vectors: float32 [q, dim]. exclude: for each query the int64 ids that must not be answered (seen items). Returns ids int64 [q, k]
        and scores float32 [q, k], best first; where fewer items exist the score is NO_ITEM. Raises BadInput for another width, NaN or k < 1.
        """
        vectors = np.ascontiguousarray(vectors, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise BadInput(
                f"query vectors of shape {vectors.shape} don't fit an index of dimension {self.dim}; give [queries, {self.dim}]."
            )
        if not np.isfinite(vectors).all():
            raise BadInput("a query vector holds NaN or infinity, so nothing is near it; check the model that made it.")
        if k < 1:
            raise BadInput(f"k={k} asks for no item; give a number from 1 on.")
        if exclude is not None and len(exclude) != len(vectors):
            raise BadInput(
                f"exclude has {len(exclude)} lists for {len(vectors)} queries; give one a query, empty where nothing is excluded."
            )
        longest = max((len(ids) for ids in exclude), default=0) if exclude is not None else 0
        fetched = min(k + longest, self.num_items)
        scores, ids = self._index.search(vectors, fetched, params=self._parameters(fetched))
        gone = scores < _LEAST
        if longest and exclude is not None:
            gone |= _listed(ids, exclude)
        if fetched < k:
            pad = ((0, 0), (0, k - fetched))
            ids, scores, gone = np.pad(ids, pad), np.pad(scores, pad), np.pad(gone, pad, constant_values=True)
        order = np.argsort(gone, axis=1, kind="stable")[:, :k]
        gone = np.take_along_axis(gone, order, axis=1)
        kept_ids = np.where(gone, -1, np.take_along_axis(ids, order, axis=1))
        kept_scores = np.where(gone, np.float32(NO_ITEM), np.take_along_axis(scores, order, axis=1))
        return kept_ids, kept_scores

    def _parameters(self, fetched: int) -> Any:
        """Search breadth of this call: a graph search that keeps fewer candidates than are asked for can't find them."""
        if self.info["kind"] == "hnsw":
            return _faiss.SearchParametersHNSW(efSearch=max(self.info["hnsw_ef_search"], fetched))
        if self.info["kind"] == "ivf":
            return _faiss.SearchParametersIVF(nprobe=self.info["ivf_probes"])
        return None


def load(uri: str, verify: bool = True) -> Bundle:
    """Load a bundle, a published version, the current version of a published folder or of a workspace, or an export step's result.

    verify: compare every file with the hash that index.json has of it. Raises BadInput when there is no bundle, ClrflowError when it is
    damaged, of another schema version or of another metric.
    """
    for attempt in range(_ATTEMPTS):
        pointed = resolve(uri)
        try:
            return _load(pointed, verify)
        except FileNotFoundError:
            # Between reading the pointer and the files a publisher may have moved on and removed the old version.
            if attempt + 1 == _ATTEMPTS or resolve(uri) == pointed:
                raise ClrflowError(f"{pointed}: the bundle is incomplete, a file is missing; export or publish it again.") from None
    raise AssertionError("unreachable")


def resolve(uri: str) -> str:
    """The bundle that a URI means right now, as load() takes it; BadInput when there is none."""
    uri = uri.rstrip("/")
    if storage.exists(storage.join(uri, INFO)):
        return uri
    for published in (uri, storage.join(uri, FOLDER)):
        current = read_published(published)
        if current is not None:
            return current.uri
    if storage.exists(storage.join(uri, "index", INFO)):
        return storage.join(uri, "index")
    raise BadInput(
        f"{uri}: holds no index ({INFO}) and no pointer to a published one ({POINTER}); "
        "give a bundle, a published version, a workspace that has published, or run the pipeline first."
    )


def _load(uri: str, verify: bool) -> Bundle:
    info = storage.read_json(storage.join(uri, INFO))
    if info.get("schema_version") != SCHEMA_VERSION:
        raise ClrflowError(
            f"{uri}: bundle schema {info.get('schema_version')}, this version reads {SCHEMA_VERSION}; export it again with this version."
        )
    if info.get("metric") != METRIC:
        raise ClrflowError(f"{uri}: metric {info.get('metric')!r}, but vectors are compared by {METRIC!r}; export it again.")
    if verify:
        for name, expected in info["files"].items():
            found = sha256(storage.join(uri, name))
            if found != expected:
                raise ClrflowError(
                    f"{uri}: {name} is damaged (sha256 {found[:12]}…, expected {expected[:12]}…); export or publish it again."
                )
    index = read_index(storage.join(uri, INDEX))
    if index.metric_type != faiss.METRIC_INNER_PRODUCT or index.d != info["dim"] or index.ntotal != info["num_items"]:
        raise ClrflowError(
            f"{uri}: {INDEX} holds {index.ntotal} vectors of width {index.d} under metric {index.metric_type}, {INFO} says "
            f"{info['num_items']} of {info['dim']} under {METRIC}; export it again."
        )
    return Bundle(uri, info, index)


def _listed(ids: Array, lists: Sequence[Array]) -> Array:
    """Where an id [q, n] is in its query's list, bool [q, n]."""
    rows = np.repeat(np.arange(len(lists)), [len(listed) for listed in lists])
    flat = np.concatenate([np.asarray(listed, np.int64) for listed in lists])
    # Ids are replaced by their places among all that occur, so that (row, id) fits one int64 whatever the ids are.
    _, place = np.unique(np.concatenate([ids.ravel(), flat]), return_inverse=True)
    width = int(place.max(initial=0)) + 1
    keys = np.arange(ids.shape[0])[:, None] * width + place[: ids.size].reshape(ids.shape)
    inside: Array = np.isin(keys, rows * width + place[ids.size :])
    return inside


def sha256(uri: str) -> str:
    """Hash of a file, read in pieces."""
    fs, path = storage.filesystem(uri)
    digest = hashlib.sha256()
    with fs.open(path, "rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def write_index(uri: str, index: Any) -> None:
    """Write a FAISS index to a local path or an object store."""
    if storage.is_local(uri):
        storage.local_path(uri).parent.mkdir(parents=True, exist_ok=True)
        faiss.write_index(index, str(storage.local_path(uri)))
    else:
        storage.write_bytes(uri, faiss.serialize_index(index).tobytes())


def read_index(uri: str) -> Any:
    """Read it back; ClrflowError when FAISS can't make sense of it."""
    try:
        if storage.is_local(uri):
            return faiss.read_index(str(storage.local_path(uri)))
        return faiss.deserialize_index(np.frombuffer(storage.read_bytes(uri), np.uint8))
    except RuntimeError as error:
        if not storage.exists(uri):
            raise FileNotFoundError(uri) from error
        reason = str(error).splitlines()[0]
        raise ClrflowError(f"{uri}: not a FAISS index ({reason}); export or publish it again.") from error
