"""Codebooks small enough to do their distances in the head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import tensor

from clrflow.semantic_ids import kmeans
from clrflow.semantic_ids.quality import code_shares
from clrflow.semantic_ids.quantiser import ResidualQuantiser, straight_through


def test_each_level_codes_what_the_one_before_left_over(quantiser_of):
    quantiser = quantiser_of([[0.0, 10.0], [-1.0, 2.0]])
    found = quantiser(tensor([[11.9], [-0.8], [9.2]], dtype=torch.float64))
    # 11.9 = 10 + 1.9 → codes 1, 1; -0.8 = 0 - 0.8 → 0, 0; 9.2 = 10 - 0.8 → 1, 0.
    assert found.codes.tolist() == [[1, 1], [0, 0], [1, 0]]
    assert found.vectors[:, 0].tolist() == pytest.approx([12, -1, 9])
    assert quantiser.vectors_of(found.codes).tolist() == found.vectors.tolist()


def test_a_price_moves_the_border_between_two_codes():
    # Between 0 and 4 the border is 2. With a price of 8 on 4: x² = (x - 4)² + 8 → x = 3.
    vectors, centres = tensor([[1.9], [2.1], [2.9], [3.1]]), tensor([[0.0], [4.0]])
    assert kmeans.nearest(vectors, centres, tensor([0.0, 0.0])).tolist() == [0, 1, 1, 1]
    assert kmeans.nearest(vectors, centres, tensor([0.0, 8.0])).tolist() == [0, 0, 0, 1]


def test_of_two_equal_codes_the_lower_is_taken_in_every_batch():
    centres = torch.randn(64, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    centres[40] = centres[7]
    vectors = centres[40].repeat(1000, 1) + 0.01
    prices = torch.zeros(64, dtype=torch.float64)
    codes = [kmeans.nearest(part, centres, prices, 1e-10) for size in (1, 7, 1000) for part in vectors.split(size)]
    assert set(torch.cat(codes).tolist()) == {7}


def evenness_by_level(balance: float) -> tuple[float, ...]:
    """Of 4 levels of 128 codes on 800 unit vectors around 20 centres, some of which have many and some few."""
    generator = torch.Generator().manual_seed(3)
    of = (torch.rand(800, generator=generator).square() * 20).long()
    vectors = torch.randn(20, 64, generator=generator)[of] + torch.randn(800, 64, generator=generator)
    quantiser = ResidualQuantiser(4, 128, 64)
    quantiser.fit(vectors / vectors.norm(dim=1, keepdim=True), torch.Generator().manual_seed(0), balance=balance, rounds=20, fresh=True)
    return code_shares(quantiser(vectors / vectors.norm(dim=1, keepdim=True)).codes, 128)[1]


def test_plain_residual_k_means_collapses_where_the_balanced_one_does_not():
    # A vector with a centre of its own leaves a zero behind; the zeros crowd one code of the next level, and so on.
    assert min(evenness_by_level(balance=0)) < 0.2
    assert min(evenness_by_level(balance=1)) > 0.9


def test_a_code_without_vectors_is_put_to_use():
    # Four clusters, and three of four centres so far away that they serve nobody.
    generator = torch.Generator().manual_seed(0)
    vectors = tensor([[0.0, 0.0], [0.0, 8.0], [8.0, 0.0], [8.0, 8.0]]).repeat(50, 1) + 0.1 * torch.randn(200, 2, generator=generator)
    start = kmeans.Centres(vectors=tensor([[4.0, 4.0], [99.0, 99.0], [99.0, 98.0], [98.0, 99.0]]), prices=torch.zeros(4))
    found = kmeans.fit(vectors, 4, generator, rounds=20, start=start)
    counts, _ = kmeans.tally(vectors, kmeans.nearest(vectors, found.vectors, found.prices), 4)
    assert bool((counts > 0).all())
    assert float(found.vectors.abs().max()) < 9


def test_fewer_vectors_than_codes_get_a_code_each():
    vectors = tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    found = kmeans.fit(vectors, 8, torch.Generator().manual_seed(0))
    codes = kmeans.nearest(vectors, found.vectors, found.prices)
    assert codes[0] == codes[2] != codes[1]
    assert found.vectors[codes].tolist() == vectors.tolist()
    assert len(torch.unique(found.vectors, dim=0)) == 8


def test_the_gradient_passes_the_quantiser_unchanged():
    latents = tensor([[1.0, 2.0]], requires_grad=True)
    out = straight_through(latents, tensor([[5.0, 5.0]]))
    (out * tensor([[2.0, 3.0]])).sum().backward()
    assert out.tolist() == [[5, 5]]
    assert latents.grad is not None
    assert latents.grad.tolist() == [[2, 3]]


def test_usable_codes_are_counted_by_different_residuals(quantiser_of):
    # Residuals at level 2: 0, 0, 1 → two different ones; at level 1 there are three latents.
    quantiser = quantiser_of([[0.0, 5.0, 9.0, 20.0], [0.0, 1.0, 2.0, 3.0]])
    latents = tensor([[0.0], [5.0], [6.0]], dtype=torch.float64)
    assert quantiser.num_usable(latents, quantiser(latents).codes) == (3, 2)
    assert np.array_equal(quantiser(latents).codes, [[0, 0], [1, 0], [1, 1]])
