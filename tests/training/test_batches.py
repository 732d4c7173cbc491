"""Batches: what is trained when, which queries carry targets, and who is nobody's negative."""

from __future__ import annotations

import numpy as np
import pytest

from clrflow.manifest import Manifest
from clrflow.training.batches import Collator, EpochPlan
from clrflow.training.catalogue import Catalogue, load_catalogue
from clrflow.training.ragged import Ragged
from clrflow.training.requests import RequestTable, load_requests
from clrflow.training.settings import ConditionSoftness
from tests.training import world


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[RequestTable, Catalogue]:
    inputs = {name: Manifest.load(uri) for name, uri in world.make_inputs(str(tmp_path_factory.mktemp("world"))).items()}
    settings = world.config()
    catalogue = load_catalogue(inputs["validate_data"], inputs["bootstrap"], inputs["semantic_ids"], settings.model)
    return load_requests(inputs["bootstrap"].output("requests"), catalogue, settings.data, settings.model), catalogue


def test_every_process_takes_equally_many_steps_and_every_request_is_trained_once_or_counted() -> None:
    plan = EpochPlan(rows=np.arange(23), batch_size=4, world_size=2, seed=0)
    assert (plan.num_steps, plan.num_dropped) == (2, 7)  # 23 = 2 steps * 2 processes * 4 + 7
    seen = [rows for rank in range(2) for _, rows in plan.batches(0, rank)]
    assert [len(rows) for rows in seen] == [4] * 4
    assert len(np.unique(np.concatenate(seen))) == 16


def test_other_requests_are_left_out_in_other_epochs() -> None:
    plan = EpochPlan(rows=np.arange(23), batch_size=4, world_size=2, seed=0)
    epochs = [set(np.concatenate([rows for rank in range(2) for _, rows in plan.batches(epoch, rank)])) for epoch in range(2)]
    assert epochs[0] != epochs[1]


def test_a_resumed_epoch_goes_on_with_the_very_requests_that_were_next() -> None:
    plan = EpochPlan(rows=np.arange(40), batch_size=5, world_size=2, seed=3)
    whole = list(plan.batches(1, rank=1))
    rest = list(plan.batches(1, rank=1, first_step=2))
    assert [step for step, _ in rest] == [2, 3]
    assert all((a[1] == b[1]).all() for a, b in zip(whole[2:], rest, strict=True))


def test_a_set_smaller_than_a_batch_is_still_trained() -> None:
    plan = EpochPlan(rows=np.arange(3), batch_size=64, world_size=2, seed=0)
    assert (plan.local_batch, plan.num_steps, plan.num_dropped) == (1, 1, 1)


def test_only_conditions_with_a_target_become_queries(loaded: tuple[RequestTable, Catalogue]) -> None:
    requests, catalogue = loaded
    batch = Collator(requests, catalogue, num_negatives=5).training(np.array([0, 1]), np.random.default_rng(0))
    # Request 0 has no history, hence one condition (interest); request 1 has interest, item and board, a target each.
    assert batch.query_present.tolist() == [[True, True, False, False], [True, True, True, True]]
    assert batch.query_types.tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]
    assert len(batch.target_items) == 2 * 2 * world.TARGETS
    targets_of_query_0 = (batch.target_queries == 0).sum().item()
    assert targets_of_query_0 == world.TARGETS


def test_a_soft_condition_also_learns_the_requests_other_targets_with_the_weight_of_its_type(
    loaded: tuple[RequestTable, Catalogue],
) -> None:
    requests, catalogue = loaded
    softness = ConditionSoftness(interest=0.5, item=0.25, board=0.0)
    batch = Collator(requests, catalogue, num_negatives=5, softness=softness).training(np.array([1]), np.random.default_rng(0))
    # Queries 0..3 are none, interest, item, board; each conditioned one has its own target (1) and the request's three with its softness.
    total = [batch.target_weights[batch.target_queries == query].sum().item() for query in range(4)]
    assert total == [3.0, 1 + 3 * 0.5, 1 + 3 * 0.25, 1.0]


def test_targets_point_at_the_items_that_the_table_names(loaded: tuple[RequestTable, Catalogue]) -> None:
    requests, catalogue = loaded
    batch = Collator(requests, catalogue, num_negatives=5).training(np.array([8]), np.random.default_rng(0))
    wanted = catalogue.rows[requests.target_items[requests.targets.take(np.array([8])).values]]
    assert batch.items.rows[batch.target_items].tolist() == wanted.tolist()
    history = batch.items.rows[batch.history[0][batch.present[0]]]
    assert history.tolist() == catalogue.rows[requests.history.take(np.array([8])).values].tolist()


def test_positives_of_the_same_user_in_another_request_are_not_negatives(loaded: tuple[RequestTable, Catalogue]) -> None:
    requests, catalogue = loaded
    same_user, other_user = np.array([0, 1]), np.array([0, world.NUM_REQUESTS])
    collator = Collator(requests, catalogue, num_negatives=world.NUM_ITEMS)
    together = collator.training(same_user, np.random.default_rng(0))
    assert together.user_positives.sum(1).tolist() == [2 * world.TARGETS] * 2
    apart = collator.training(other_user, np.random.default_rng(0))
    assert apart.user_positives.sum(1).tolist() == [world.TARGETS] * 2


def test_as_many_negatives_as_items_are_the_whole_catalogue(loaded: tuple[RequestTable, Catalogue]) -> None:
    requests, catalogue = loaded
    batch = Collator(requests, catalogue, num_negatives=10**6).training(np.array([0]), np.random.default_rng(0))
    assert len(batch.candidates) == world.NUM_ITEMS
    assert batch.log_inclusion.abs().sum() == 0


def test_items_that_nobody_touched_in_training_have_no_row_of_their_own(loaded: tuple[RequestTable, Catalogue]) -> None:
    _, catalogue = loaded
    assert catalogue.rows[-2:].tolist() == [0, 0]
    assert (catalogue.rows[:-2] > 0).all()


def test_rows_of_lists_are_taken_cut_and_padded_as_by_hand() -> None:
    rows = Ragged(np.array([1, 2, 3, 4, 5, 6]), np.array([0, 3, 3, 6]))  # [1 2 3], [], [4 5 6]
    assert rows.take(np.array([2, 1, 0])).values.tolist() == [4, 5, 6, 1, 2, 3]
    assert rows.last(2).values.tolist() == [2, 3, 5, 6]
    assert rows.first(2).values.tolist() == [1, 2, 4, 5]
    assert rows.first(2).offsets.tolist() == [0, 2, 2, 4]
    padded, present = rows.last(2).padded(3, front=True)
    assert padded.tolist() == [[0, 2, 3], [0, 0, 0], [0, 5, 6]]
    assert present.tolist() == [[False, True, True], [False] * 3, [False, True, True]]
