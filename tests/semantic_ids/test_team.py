"""Threads and processes share the work, and nobody can tell from the result how many there were."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from clrflow.errors import ClrflowError
from clrflow.semantic_ids import kmeans
from clrflow.semantic_ids.build import build
from clrflow.semantic_ids.processes import train_by_processes
from clrflow.semantic_ids.team import ALONE, Team, one_thread_a_part
from clrflow.semantic_ids.training import train
from tests.semantic_ids.conftest import catalogue_of


@pytest.fixture(scope="module")
def many():
    """1,500 items, so that batches and searches are cut into several parts; every tenth is a copy."""
    rng = np.random.default_rng(2)
    embeddings = rng.normal(size=(30, 24))[np.arange(1500) % 30] + 0.5 * rng.normal(size=(1500, 24))
    embeddings[::10] = embeddings[0]
    return catalogue_of(embeddings)


@pytest.fixture
def settings_of_many(settings):
    return settings.model_copy(update={"max_epochs": 2, "batch_size": 700})


def test_one_two_and_three_processes_give_the_same_ids(many, settings_of_many):
    alone = build(many, settings_of_many)
    for processes in (2, 3):
        together = build(many, settings_of_many.model_copy(update={"num_processes": processes}))
        assert together.tokenizer.hash == alone.tokenizer.hash
        assert np.array_equal(together.tokenizer.codes, alone.tokenizer.codes)
        assert together.trained is not None
        assert together.trained.epochs == alone.trained.epochs  # to the last bit, the losses too


def test_several_processes_go_on_from_a_tokenizer_like_one(many, settings_of_many):
    start = build(many, settings_of_many).tokenizer.model
    alone = train(torch.from_numpy(many.embeddings), settings_of_many, start=start)
    together = train_by_processes(many.embeddings, settings_of_many.model_copy(update={"num_processes": 2}), start)
    for name, tensor in alone.model.state_dict().items():
        assert torch.equal(together.model.state_dict()[name], tensor), name


def test_the_number_of_torch_threads_changes_nothing(many, settings_of_many):
    before = torch.get_num_threads()
    try:
        hashes = set()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            hashes.add(build(many, settings_of_many).tokenizer.hash)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert len(hashes) == 1


def test_parts_are_put_together_in_their_order():
    parts = list(range(7))
    with one_thread_a_part():
        results = ALONE.each(lambda part: torch.full((2,), float(part)), parts)
    assert ALONE.rows(results, [2] * 7, torch.zeros(())).tolist() == [float(part) for part in parts for _ in range(2)]
    assert ALONE.total(results, 7, torch.zeros(2)).tolist() == [21, 21]
    assert [list(Team(rank, 3).mine(parts)) for rank in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]


def test_work_in_threads_may_be_cut_into_parts_again():
    # If each of these waited for threads of the same pool, nobody would be left to do the inner work.
    with one_thread_a_part():
        sums = ALONE.each(lambda outer: sum(ALONE.each(lambda inner: outer * inner, range(20))), range(40))
    assert sums == [190 * outer for outer in range(40)]


def test_vectors_that_want_gradients_can_be_searched_by_threads():
    vectors = torch.randn(5000, 4, requires_grad=True)
    centres = torch.randn(1024, 4)
    with one_thread_a_part():
        codes = kmeans.nearest(vectors, centres, torch.zeros(1024))
    assert torch.equal(codes, torch.cdist(vectors.detach().double(), centres.double()).argmin(1))


def test_processes_that_disagree_are_found_out(monkeypatch, many, settings_of_many):
    @dataclasses.dataclass
    class Other(Team):
        """Stands beside a second process whose digest is another one."""

        rank: int = 0
        size: int = 2

        def mine(self, parts):
            return parts

        def total(self, results, num_parts, like):
            return torch.stack(list(results)).sum(0)

        def rows(self, results, lengths, like):
            found = torch.cat(list(results))
            return torch.stack([found[0], found[0] + 1]) if lengths == [1, 1] else found

    with pytest.raises(ClrflowError, match=r"2 processes ended with 2 different tokenizers.*num_processes=1"):
        train(torch.from_numpy(many.embeddings), settings_of_many, team=Other())
