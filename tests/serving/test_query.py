"""A server's answers are the model's: the same vectors as training computed, from quantised rows and one history pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from clrflow.errors import BadInput, ClrflowError
from clrflow.manifest import Manifest
from clrflow.serving.query import Condition, Retriever, parse_condition
from clrflow.serving.tables import load_model
from tests.serving.conftest import export
from tests.training import world

USER = 3
REQUEST = USER * world.NUM_REQUESTS + world.NUM_REQUESTS - 1


def conditions_of_request(retriever: Retriever) -> list[Condition]:
    state = retriever._state(USER)
    return [Condition("none"), *(Condition(found["type"], found["id"]) for found in state["conditions"])]


def trained_vectors(train: Manifest) -> np.ndarray:
    """Of the request that the user's state equals, by condition from -1."""
    table = pq.read_table(train.output("query_vectors")).to_pandas()
    rows = table[table["request_id"] == REQUEST].sort_values("condition")
    return np.stack(rows["vector"].to_list())


def test_the_servers_vectors_equal_those_of_training(exact: tuple[Retriever, Manifest]) -> None:
    retriever, train = exact
    asked = conditions_of_request(retriever)
    assert [condition.type for condition in asked] == ["none", "interest", "item", "board"]
    np.testing.assert_allclose(retriever.vectors(retriever._state(USER), asked), trained_vectors(train), atol=1e-5)


def test_quantised_rows_turn_the_vectors_by_little(exact: tuple[Retriever, Manifest], tmp_path: Path) -> None:
    quantised, train = export(tmp_path, bits=8)
    vectors = quantised.vectors(quantised._state(USER), conditions_of_request(quantised))
    assert (vectors * trained_vectors(train)).sum(1).min() > 0.99
    assert train.metrics["quantisation_error"] < 0.02


def test_many_conditions_in_one_query_answer_as_each_alone(retriever: Retriever) -> None:
    conditions = [Condition("interest", 7), Condition("board", USER), Condition("none")]
    together = retriever.query(USER, conditions, k=5)
    alone = [retriever.query(USER, [condition], k=5)[0] for condition in conditions]
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.condition == theirs.condition
        assert [row[0] for row in ours.items] == [row[0] for row in theirs.items]
        np.testing.assert_allclose([row[1] for row in ours.items], [row[1] for row in theirs.items], atol=1e-5)


def test_answers_carry_titles_interests_and_never_what_the_user_has_seen(retriever: Retriever) -> None:
    (answer,) = retriever.query(USER, [Condition("interest", 9)], k=100)
    assert answer.condition == "interest:9 odd"
    seen = set(retriever._state(USER)["history_items"])
    assert not seen & {row[0] for row in answer.items}
    assert len(answer.items) == world.NUM_ITEMS - len(seen)
    item_id, _, title, interests = answer.items[0]
    at = world.ITEM_IDS.tolist().index(item_id)
    assert title == f"title {at}"
    assert interests == [["even", "odd"][at % 2]]


def test_a_user_whom_the_index_does_not_know_is_answered_by_the_condition(retriever: Retriever) -> None:
    (answer,) = retriever.query(10**9, [Condition("interest", 7)], k=3)
    assert len(answer.items) == 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("interest", "write none, interest:ID"),
        ("genre:5", "write none, interest:ID"),
        ("interest:five", "no whole number"),
        ("item:99999999999999999999", "does not fit 64 bits"),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        parse_condition(text)


@pytest.mark.parametrize("text", ["interest:8", "item:1", "board:777"])
def test_a_condition_that_the_index_does_not_know_is_refused_by_name(retriever: Retriever, text: str) -> None:
    with pytest.raises(BadInput, match=f"{text}: the index knows no such"):
        retriever.query(USER, [parse_condition(text)])


def test_bounds_of_a_query_are_held(retriever: Retriever) -> None:
    with pytest.raises(BadInput, match="k=0"):
        retriever.query(USER, [], k=0)
    with pytest.raises(BadInput, match="at most 64"):
        retriever.query(USER, [Condition("none")] * 65)


def test_a_model_of_another_tokenizer_is_refused(exact: tuple[Retriever, Manifest]) -> None:
    _, train = exact
    with pytest.raises(ClrflowError, match="trained with tokenizer abc"):
        load_model(train.output("serving"), tokenizer_hash="another")


def test_a_user_whose_id_does_not_fit_is_refused_and_an_unknown_one_is_told_apart(retriever: Retriever) -> None:
    with pytest.raises(BadInput, match="does not fit 64 bits"):
        retriever.query(2**63, [])
    assert retriever.knows(USER)
    assert not retriever.knows(-(2**63))
    assert len(retriever.query(-(2**63), [], k=3)[0].items) == 3
