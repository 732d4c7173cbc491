"""The vectors that all tokenizers are given, and which items belong together: by common users, by genre, by the cluster they were drawn from.

Amazon's texts may be read where they lie and not be passed on; they are left out, with the reason, where they don't.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.processes import Jobs
from clrflow.data import movielens
from clrflow.data.text_encoder import encode_texts
from clrflow.errors import BadInput
from clrflow.semantic_ids.catalogue import read_catalogue, unit_vectors

ROOT = Path(os.environ.get("CLRFLOW_BENCH_WORKSPACE", "demo/bench-semantic-ids")).absolute()
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
"""Beside the project; README.md there says where the files come from."""
JOBS = Jobs(
    module="benchmarks.semantic_ids.jobs",
    code=("clrflow/semantic_ids", "clrflow/data", "clrflow/launch", "benchmarks/semantic_ids"),
    packages=("torch", "faiss-cpu", "vector-quantize-pytorch", "semantic-id", "scikit-learn", "wordllama"),
)
Ints = NDArray[np.int64]

SYNTHETIC_DIM, TOPICS, THEMES = 128, 1000, 40_000
SEED = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """Items with vectors and groups."""

    embeddings: NDArray[np.float32]
    """Unit vectors [items, dim]; a zero row where there is no text."""
    num_groups: Ints
    """Groups an item is in."""
    groups: Ints
    """All items' groups, one item after the other."""

    def save(self, folder: Path) -> None:
        """As one file an array."""
        folder.mkdir(parents=True, exist_ok=True)
        for field in dataclasses.fields(self):
            np.save(folder / f"{field.name}.npy", getattr(self, field.name))

    @classmethod
    def load(cls, folder: str) -> World:
        return cls(**{field.name: np.load(Path(folder) / f"{field.name}.npy") for field in dataclasses.fields(cls)})


def amazon(name: str) -> World:
    """Texts of a shop's items; items belong together that the same users reviewed."""
    given = SHARED / f"amazon-{name}"
    if not given.is_dir():
        raise BadInput(f"amazon-{name}: {str(given)!r} does not exist; put the set's items and interactions there as Parquet files.")
    items, taken = (
        pq.read_table(given / "items.parquet").sort_by("item_id"),
        pq.read_table(given / "interactions.parquet").sort_by("item_id"),
    )
    item = taken["item_id"].to_numpy().astype(np.int64)
    counts = np.bincount(item, minlength=len(items))
    texts = [text or "" for text in items["text"].to_pylist()]
    return World(embeddings=unit_vectors(encode_texts(texts)), num_groups=counts, groups=taken["user_id"].to_numpy().astype(np.int64))


def films() -> World:
    """Titles of MovieLens-100k; films belong together that have genres in common."""
    folder = str(ROOT / "movielens-100k")
    movielens.prepare(folder)
    catalogue = read_catalogue(f"{folder}/items")
    return World(embeddings=catalogue.embeddings, num_groups=catalogue.num_interests, groups=catalogue.interests)


def synthetic(num_items: int) -> World:
    """Items of 40,000 themes of 1,000 topics, large and small: an item is its topic, its theme's own direction, and as much of its own."""
    rng = np.random.default_rng(SEED)
    topic_of_theme = rng.choice(TOPICS, size=THEMES, p=_falling(TOPICS))
    theme = rng.choice(THEMES, size=num_items, p=_falling(THEMES))
    centres = _directions(rng, TOPICS)[topic_of_theme] + 0.8 * _directions(rng, THEMES)
    embeddings = np.empty((num_items, SYNTHETIC_DIM), dtype=np.float32)
    for start in range(0, num_items, 100_000):
        part = theme[start : start + 100_000]
        embeddings[start : start + len(part)] = centres[part] + 0.8 * _directions(rng, len(part))
    return World(
        embeddings=unit_vectors(embeddings), num_groups=np.ones(num_items, dtype=np.int64), groups=topic_of_theme[theme].astype(np.int64)
    )


def _falling(count: int) -> NDArray[np.float64]:
    """Shares that fall with the square root of the rank: the first is some tens of times the last."""
    weights = 1 / np.sqrt(np.arange(1, count + 1))
    return np.asarray(weights / weights.sum())


def _directions(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    # Each dimension counts for less than the one before, as in vectors of texts; length is 1 on average.
    spread = np.arange(1, SYNTHETIC_DIM + 1) ** -0.3
    return np.asarray(rng.normal(size=(count, SYNTHETIC_DIM)) * (spread / np.linalg.norm(spread)), dtype=np.float32)
