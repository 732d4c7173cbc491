"""The residual-quantised autoencoder: embedding → latent → codes → latent → embedding.

Encoder and decoder are a straight path plus an MLP whose last layer starts at zero. The straight path starts as the principal components,
so training begins at residual k-means in the best linear latent space and can only bend it from there; a randomly started encoder
spends most of its steps getting that far, and tends to collapse on the way.
Next: training.py.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from clrflow.semantic_ids.quantiser import Quantised, ResidualQuantiser, straight_through

ROWS_FOR_COMPONENTS = 100_000
"""As many items say what the principal components are."""


class BentLinear(nn.Module):
    """A linear map plus an MLP with GELU that starts at zero."""

    def __init__(self, widths: tuple[int, ...]):
        super().__init__()
        self.straight = nn.Linear(widths[0], widths[-1])
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.GELU()]
        self.bend = nn.Sequential(*layers[:-1])
        last = self.bend[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, rows: Tensor) -> Tensor:
        return self.straight(rows) + self.bend(rows)


class RqVae(nn.Module):
    """Encoder, residual quantiser, decoder for unit vectors of width `dim`."""

    def __init__(self, dim: int, latent_dim: int, hidden_dims: tuple[int, ...], num_levels: int, num_codes: int):
        super().__init__()
        self.dim, self.latent_dim, self.hidden_dims = dim, min(latent_dim, dim), hidden_dims
        widths = (dim, *hidden_dims, self.latent_dim)
        self.encoder, self.decoder = BentLinear(widths), BentLinear(widths[::-1])
        self.quantiser = ResidualQuantiser(num_levels, num_codes, self.latent_dim)

    @torch.no_grad()
    def start_from(self, embeddings: Tensor) -> None:
        """Set the straight paths to the principal components of unit vectors [rows, dim] and back."""
        rows = embeddings.double()
        mean = rows.mean(0)
        centred = rows - mean
        _, vectors = torch.linalg.eigh(centred.T @ centred)  # ascending; its signs depend on the library, so they are fixed below
        components = vectors.flip(1)[:, : self.latent_dim].T
        largest = components.gather(1, components.abs().argmax(1, keepdim=True))
        components = components * largest.sign()
        self.encoder.straight.weight.copy_(components)
        self.encoder.straight.bias.copy_(-components @ mean)
        self.decoder.straight.weight.copy_(components.T)
        self.decoder.straight.bias.copy_(mean)

    def forward(self, embeddings: Tensor) -> tuple[Tensor, Tensor, Quantised]:
        """Unit vectors [rows, dim] → latents [rows, latent_dim], reconstructions [rows, dim], codes."""
        latents = self.encoder(embeddings)
        quantised = self.quantiser(latents)
        return latents, self.decoder(straight_through(latents, quantised.vectors)), quantised


def loss_sum(
    embeddings: Tensor, latents: Tensor, reconstructions: Tensor, vectors: Tensor, energies: tuple[Tensor, Tensor], commitment: float
) -> Tensor:
    """Unexplained share of the embeddings' energy plus `commitment` times the unexplained share of the latents', summed over rows.

    `energies` are a row's mean energies of both kinds. Shares lie between 0 and about 1, so neither can be lowered by shrinking the latents,
    and one weight suits every width.
    """
    embedding_energy, latent_energy = energies
    reconstruction = (reconstructions - embeddings).square().sum() / embedding_energy
    return reconstruction + commitment * (latents - vectors.detach()).square().sum() / latent_energy
