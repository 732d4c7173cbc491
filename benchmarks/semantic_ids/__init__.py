"""Semantic ids measured: against the quantisers of three packages, on texts of shops and films and on a million synthetic vectors.

    python -m benchmarks.semantic_ids [--size full] [--json FILE]

__main__.py   the rows and claims
worlds.py     the vectors, and which of their items belong together
jobs.py       what runs in processes of its own: ours, each peer, judging, stability, encoding
peers/        residual k-means by faiss, ResidualVQ of vector-quantize-pytorch, RQ-k-means and RQ-VAE of semantic-id
"""
