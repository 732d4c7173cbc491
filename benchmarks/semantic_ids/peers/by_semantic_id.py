"""RQ-k-means and RQ-VAE of the package semantic-id."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from semantic_id.algorithms import RQVAE, RQKMeans  # type: ignore[import-not-found, import-untyped, unused-ignore]

from benchmarks.semantic_ids.peers import Fitted, Floats, Ints, sum_of

SAMPLE_PER_CODE = 64
"""Vectors a code that k-means is fitted to, as ours; without a limit a million of them take hours."""
BATCH = 2048


def fit_kmeans(embeddings: Floats, levels: int, codes: int, seed: int) -> Fitted:
    """Plain k-means by scikit-learn: one start a level and 25 rounds, as faiss has (the package's ten starts take ten times as long)."""
    rows = np.random.default_rng(seed).permutation(len(embeddings))[: SAMPLE_PER_CODE * codes]
    model = RQKMeans(n_levels=levels, n_clusters=codes, max_iter=25, n_init=1, random_state=seed).fit(embeddings[np.sort(rows)])
    codebooks = [np.asarray(book, dtype=np.float32) for book in model.codebooks_]
    return Fitted(encode=functools.partial(_in_batches, model.encode), decode=functools.partial(sum_of, codebooks))


def fit_rqvae(embeddings: Floats, levels: int, codes: int, seed: int, epochs: int) -> Fitted:
    """The autoencoder with its k-means start, on vectors whose dimensions vary by about 1: on unit vectors it learns next to nothing."""
    scale = np.float32(np.sqrt(embeddings.shape[1]))
    torch.manual_seed(seed)
    model = RQVAE(
        in_dim=embeddings.shape[1], num_emb_list=[codes] * levels, e_dim=64, layers=[256, 128], kmeans_init=True, kmeans_iters=20, lr=1e-3,
        batch_size=BATCH, epochs=epochs,
    )  # fmt: skip
    model.fit(embeddings * scale)
    module: Any = model.module.eval()

    def encode(vectors: Floats) -> Ints:
        return np.asarray(model.encode(vectors * scale), dtype=np.int64)

    def decode(found: Ints) -> Floats:
        with torch.no_grad():
            rows = torch.from_numpy(found)
            latents = torch.stack([layer.embedding.weight[rows[:, level]] for level, layer in enumerate(module.rq.vq_layers)]).sum(0)
            return np.asarray(module.decoder(latents).numpy() / scale, dtype=np.float32)

    return Fitted(encode=functools.partial(_in_batches, encode), decode=functools.partial(_in_batches, decode))


def _in_batches(work: Callable[[Any], Any], rows: Any) -> Any:
    return np.concatenate([work(rows[at : at + BATCH]) for at in range(0, len(rows), BATCH)])
