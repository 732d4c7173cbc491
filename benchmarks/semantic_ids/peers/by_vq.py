"""ResidualVQ of vector-quantize-pytorch: codebooks as running averages, started by k-means, dead codes replaced."""

from __future__ import annotations

import numpy as np
import torch
from vector_quantize_pytorch import ResidualVQ  # type: ignore[import-not-found, import-untyped, unused-ignore]

from benchmarks.semantic_ids.peers import Fitted, Floats, Ints

BATCH = 2048
STEPS, PASSES = 600, 2
"""So many batches, or passes where that is more."""


def fit(embeddings: Floats, levels: int, codes: int, seed: int) -> Fitted:
    """Without an encoder the loss has nothing to train, and the codebooks learn by their averages alone."""
    torch.manual_seed(seed)
    quantiser = ResidualVQ(
        dim=embeddings.shape[1], num_quantizers=levels, codebook_size=codes, kmeans_init=True, kmeans_iters=10, decay=0.9,
        threshold_ema_dead_code=2,
    )  # fmt: skip
    quantiser.train()
    rows = torch.from_numpy(embeddings)
    with torch.no_grad():
        quantiser(rows[torch.randperm(len(rows))[: max(BATCH, 4 * codes)]][None])  # k-means starts from vectors enough for every code
        batches = -(-len(rows) // BATCH)
        for _ in range(max(PASSES, STEPS // batches)):
            for picked in torch.randperm(len(rows)).split(BATCH):
                quantiser(rows[picked][None])
    quantiser.eval()

    def encode(vectors: Floats) -> Ints:
        with torch.no_grad():
            return np.concatenate([quantiser(part[None])[1][0].numpy() for part in torch.from_numpy(vectors).split(BATCH)])

    def decode(found: Ints) -> Floats:
        with torch.no_grad():
            parts = [quantiser.get_output_from_indices(part[None])[0].numpy() for part in torch.from_numpy(found).split(BATCH)]
        return np.concatenate(parts)

    return Fitted(encode=encode, decode=decode)
