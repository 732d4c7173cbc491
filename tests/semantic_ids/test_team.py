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
from clrflow.semantic_ids.training import ENCODED_AT_ONCE, ITEMS_A_PART, STEPS_PER_EPOCH, train
from tests.semantic_ids.conftest import catalogue_of

NUM_ITEMS, NUM_CODES, BATCH = 9000, 512, 700


@pytest.fixture(scope="module")
def many():
    """So many items that all kinds of work are cut into several parts; every tenth is a copy."""
    rng = np.random.default_rng(2)
    embeddings = rng.normal(size=(30, 8))[np.arange(NUM_ITEMS) % 30] + 0.5 * rng.normal(size=(NUM_ITEMS, 8))
    embeddings[::10] = embeddings[0]
    return catalogue_of(embeddings)


@pytest.fixture(scope="module")
def settings_of_many(settings):
    return settings.model_copy(update={"num_codes": NUM_CODES, "num_levels": 2, "max_epochs": 1, "batch_size": BATCH})


@pytest.fixture(scope="module")
def alone(many, settings_of_many):
    return build(many, settings_of_many)


def test_all_kinds_of_work_have_parts_here():
    # Else the tests below would say nothing of how parts are put together.
    training, held_out = NUM_ITEMS * 9 // 10, NUM_ITEMS // 10
    batch = min(BATCH, training // STEPS_PER_EPOCH)
    parts = {
        "gradients": batch / ITEMS_A_PART,
        "validation": held_out / ITEMS_A_PART,
        "encoding": training / ENCODED_AT_ONCE,
        "search": training * NUM_CODES / kmeans.CELLS_A_PART,
        "prices": min(training, kmeans.PRICED_PER_CENTRE * NUM_CODES) / kmeans.PRICED_AT_ONCE,
    }
    assert {name: number for name, number in parts.items() if number <= 1} == {}


@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_give_the_ids_of_one(processes, many, settings_of_many, alone):
    together = build(many, settings_of_many.model_copy(update={"num_processes": processes}))
    assert together.tokenizer.hash == alone.tokenizer.hash
    assert np.array_equal(together.tokenizer.codes, alone.tokenizer.codes)
    assert together.trained is not None
    assert together.trained.epochs == alone.trained.epochs  # to the last bit, the losses too


def test_several_processes_go_on_from_a_tokenizer_like_one(many, settings_of_many, alone):
    start = alone.trained.model
    further = train(torch.from_numpy(many.embeddings), settings_of_many, start=start)
    together = train_by_processes(many.embeddings, settings_of_many.model_copy(update={"num_processes": 2}), start)
    for name, tensor in further.model.state_dict().items():
        assert torch.equal(together.model.state_dict()[name], tensor), name


def test_a_process_that_fails_says_why_and_leaves_no_files(many, settings_of_many, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = train(torch.from_numpy(many.embeddings[:100]), settings_of_many.model_copy(update={"num_codes": 4})).model
    with pytest.raises(ClrflowError, match=r"training of semantic ids ended with exit code 1(?s:.)*size mismatch(?s:.)*it starts afresh"):
        train_by_processes(many.embeddings, settings_of_many.model_copy(update={"num_processes": 2}), other)
    assert list(tmp_path.glob("clrflow-semantic-ids-*")) == []


def test_the_number_of_torch_threads_changes_nothing(many, settings_of_many, alone):
    before = torch.get_num_threads()
    other = 3 - min(before, 2)  # 1 and 2 are each other's other
    try:
        torch.set_num_threads(other)
        assert build(many, settings_of_many).tokenizer.hash == alone.tokenizer.hash
        assert torch.get_num_threads() == other
    finally:
        torch.set_num_threads(before)


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
