"""On a GPU: the same codes as on a CPU, and training that is as good."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clrflow.semantic_ids import kmeans
from clrflow.semantic_ids.step import run
from clrflow.semantic_ids.tokenizer import Tokenizer
from clrflow.semantic_ids.training import train
from tests.semantic_ids.test_step import context_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


def test_codes_in_float64_are_those_of_a_cpu():
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(2048, 64, generator=generator, dtype=torch.float64)
    vectors = torch.cat([torch.randn(20_000, 64, generator=generator, dtype=torch.float64), (centres[:-1] + centres[1:]) / 2])
    prices = torch.rand(2048, generator=generator, dtype=torch.float64)
    on_gpu = kmeans.nearest(vectors.cuda(), centres.cuda(), prices.cuda(), 1e-10)
    assert torch.equal(on_gpu.cpu(), kmeans.nearest(vectors, centres, prices, 1e-10))


def test_training_there_twice_gives_equal_ids(clusters, settings):
    hashes = {
        Tokenizer.found(train(torch.from_numpy(clusters.embeddings), settings, "cuda").model, clusters.item_ids, clusters.embeddings)[
            0
        ].hash
        for _ in range(2)
    }
    assert len(hashes) == 1


def test_the_whole_step_runs_there(clusters, settings, tmp_path):
    assert run(context_of(tmp_path, settings, clusters.embeddings)).metrics["collision_after"] == 0


def test_what_was_trained_there_encodes_here(clusters, settings, tmp_path):
    trained = train(torch.from_numpy(clusters.embeddings), settings, "cuda")
    there, assigned = Tokenizer.found(trained.model, clusters.item_ids, clusters.embeddings)
    there.save(str(tmp_path))
    here = Tokenizer.load(str(tmp_path), expected_hash=there.hash)
    assert np.array_equal(here.nearest_codes(clusters.item_ids, clusters.embeddings), assigned.nearest)
    assert len(np.unique(there.codes, axis=0)) == len(clusters)
    assert min(len(np.unique(level)) for level in assigned.nearest.T) == settings.num_codes
