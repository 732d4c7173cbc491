"""Residual k-means by faiss: k-means of the vectors, then of what each level leaves over."""

from __future__ import annotations

import functools

import faiss
import numpy as np

from benchmarks.semantic_ids.peers import Fitted, Floats, Ints, sum_of

ITERATIONS = 25
"""faiss's own default."""


def fit(embeddings: Floats, levels: int, codes: int, seed: int) -> Fitted:
    """Of many vectors faiss itself takes a sample of 256 a code."""
    residuals, codebooks = embeddings.copy(), []
    for _ in range(levels):
        clustering = faiss.Kmeans(embeddings.shape[1], codes, niter=ITERATIONS, seed=seed)
        clustering.train(residuals)
        codebooks.append(np.asarray(clustering.centroids))
        residuals -= codebooks[-1][clustering.index.search(residuals, 1)[1][:, 0]]
    return Fitted(encode=encoder(codebooks), decode=functools.partial(sum_of, codebooks))


def encoder(codebooks: list[Floats]) -> functools.partial[Ints]:
    """Nearest codes level by level, by faiss's exact search."""
    indexes = []
    for codebook in codebooks:
        indexes.append(faiss.IndexFlatL2(codebook.shape[1]))
        indexes[-1].add(codebook)
    return functools.partial(_encode, codebooks, indexes)


def _encode(codebooks: list[Floats], indexes: list[faiss.IndexFlatL2], embeddings: Floats) -> Ints:
    residuals, found = embeddings.copy(), []
    for codebook, index in zip(codebooks, indexes, strict=True):
        found.append(index.search(residuals, 1)[1][:, 0])
        residuals -= codebook[found[-1]]
    return np.stack(found, 1)
