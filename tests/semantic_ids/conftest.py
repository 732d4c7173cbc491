"""Catalogues whose structure is known by construction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from clrflow.semantic_ids.catalogue import Catalogue, unit_vectors
from clrflow.semantic_ids.quantiser import ResidualQuantiser
from clrflow.semantic_ids.settings import SemanticIdSettings


def catalogue_of(embeddings: np.ndarray, interests: np.ndarray | None = None) -> Catalogue:
    """Items 10, 11, ... with these embeddings and one interest each (1 unless told)."""
    item_ids = np.arange(10, 10 + len(embeddings), dtype=np.int64)
    return Catalogue(
        item_ids=item_ids,
        embeddings=unit_vectors(embeddings.astype(np.float32)),
        num_interests=np.ones(len(item_ids), dtype=np.int64),
        interests=np.ones(len(item_ids), dtype=np.int64) if interests is None else interests,
        titles=[f"Item {item}" for item in item_ids],
    )


@pytest.fixture(scope="session")
def clusters() -> Catalogue:
    """400 items around 8 centres in 16 dimensions; the interest is the centre."""
    rng = np.random.default_rng(1)
    of = np.arange(400) % 8
    embeddings = rng.normal(size=(8, 16))[of] + 0.3 * rng.normal(size=(400, 16))
    return catalogue_of(embeddings, of.astype(np.int64))


@pytest.fixture(scope="session")
def settings() -> SemanticIdSettings:
    return SemanticIdSettings(num_levels=3, num_codes=16, latent_dim=8, hidden_dims=(16,), max_epochs=4)


@pytest.fixture(scope="session")
def quantiser_of() -> Callable[[list[list[float]]], ResidualQuantiser]:
    """A quantiser of one-dimensional codebooks given level by level, without prices."""

    def make(levels: list[list[float]]) -> ResidualQuantiser:
        quantiser = ResidualQuantiser(len(levels), len(levels[0]), 1).double()
        quantiser.centres.copy_(torch.tensor(levels, dtype=torch.float64)[:, :, None])
        return quantiser

    return make
