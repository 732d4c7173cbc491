"""Bodies in and out: what is asked is what is computed, and everything else is refused with place, value and remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clrflow.errors import BadInput
from clrflow.serving.merge import merge
from clrflow.serving.protocol import answer, encode, parse_request
from clrflow.serving.query import Condition, Retriever
from clrflow.serving.settings import serve_settings
from tests.training import world

SETTINGS = serve_settings(index="anywhere", max_instances="8", max_items="2000")


def parse(*instances: Any) -> Any:
    return parse_request(json.dumps({"instances": list(instances)}).encode(), SETTINGS)


def test_an_instance_has_a_user_conditions_and_k() -> None:
    (found,) = parse({"user": 7, "conditions": ["interest:5", "none"], "k": 3})
    assert (found.user, found.conditions, found.k) == (7, [Condition("interest", 5), Condition("none")], 3)


def test_no_condition_is_the_unconditional_query_and_k_is_10() -> None:
    (found,) = parse({"user": -1})
    assert (found.user, found.conditions, found.k) == (-1, [Condition("none")], 10)


@pytest.mark.parametrize("user", [2**53 + 1, 2**63 - 1, -(2**63)])
def test_an_id_is_exact_to_64_bits(user: int) -> None:
    assert parse({"user": user, "conditions": [f"item:{user}"]})[0].user == user
    assert parse({"user": user, "conditions": [f"item:{user}"]})[0].conditions == [Condition("item", user)]


WRONG_BODIES = [
    (b"", "isn't JSON"),
    (b"user=7", "isn't JSON"),
    (b"\xff\xfe{}", "isn't JSON"),
    (b"[" * 100_000, "isn't JSON"),
    (b'{"instances": [{"user": ' + b"9" * 5000 + b"}]}", "isn't JSON"),
    (b"[1, 2]", r"the body holds \[1, 2\]"),
    (b"{}", 'one field, "instances"'),
    (b'{"inputs": [1]}', r"the fields \['inputs'\]"),
    (b'{"instances": [{"user": 1}], "more": 1}', r"the fields \['instances', 'more'\]"),
    (b'{"instances": []}', r"instances=\[\]: it must be a list of at least one"),
    (b'{"instances": {"user": 1}}', "must be a list"),
    (b'{"instances": [{"user": 1}, 5]}', r"instances\[1\]=5: it must be an object"),
    (b'{"instances": [{"user": 9007199254740993.0}]}', r"instances\[0\].user=.*must be an integer"),
    (b'{"instances": [{"user": 1e3}]}', "user=1000.0: it must be an integer"),
    (b'{"instances": [{"user": NaN}]}', "user=nan: it must be an integer"),
    (b'{"instances": [{"user": 9223372036854775808}]}', "does not fit 64 bits"),
]


@pytest.mark.parametrize(("body", "why"), WRONG_BODIES, ids=range(len(WRONG_BODIES)))
def test_a_body_that_is_something_else_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(BadInput, match=why) as caught:
        parse_request(body, SETTINGS)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("instance", "why"),
    [
        ({}, r'instances\[0\] has no "user"'),
        ({"user": "7"}, "user='7': it must be an integer"),
        ({"user": True}, "user=True: it must be an integer"),
        ({"user": None}, "user=None: it must be an integer"),
        ({"user": 1, "k": 0}, r"instances\[0\].k=0: ask for 1 to 1000"),
        ({"user": 1, "k": 1001}, "k=1001: ask for 1 to 1000"),
        ({"user": 1, "k": 2.5}, "k=2.5: it must be an integer"),
        ({"user": 1, "condition": "none"}, "instances.0..condition: there is no such field; an instance has user, conditions, k"),
        ({"user": 1, "conditions": "interest:5"}, "conditions='interest:5': it must be a list"),
        ({"user": 1, "conditions": [5]}, r"conditions\[0\]=5: it must be a text"),
        ({"user": 1, "conditions": ["none", "genre:5"]}, r"conditions\[1\]: condition 'genre:5': write none"),
        ({"user": 1, "conditions": ["item:9223372036854775808"]}, "does not fit 64 bits"),
        ({"user": 1, "conditions": ["item:" + "1" * 100_000]}, "must be a text"),
        ({"user": 1, "conditions": ["none"] * 65}, "has 65 entries; at most 64"),
    ],
)
def test_a_wrong_instance_is_refused_with_its_place(instance: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why) as caught:
        parse(instance)
    assert len(str(caught.value)) < 300


def test_a_request_has_at_most_so_many_instances_and_asks_for_at_most_so_many_items() -> None:
    assert len(parse(*[{"user": 1}] * 8)) == 8
    with pytest.raises(BadInput, match="instances has 9 entries; a request takes 8 at most"):
        parse(*[{"user": 1}] * 9)
    assert parse({"user": 1, "k": 1000, "conditions": ["none", "interest:5"]})
    with pytest.raises(BadInput, match=r"ask for 3000 items .* takes 2000 at most"):
        parse({"user": 1, "k": 1000, "conditions": ["none"]}, {"user": 2, "k": 1000, "conditions": ["none", "none"]})


def test_an_answer_is_what_the_retriever_finds(retriever: Retriever) -> None:
    (found,) = answer(retriever, parse({"user": 3, "conditions": ["interest:7", "board:3"], "k": 5}))
    told = json.loads(encode(found))
    for ours, theirs in zip(told["by_condition"], retriever.search(3, [Condition("interest", 7), Condition("board", 3)], 5), strict=True):
        assert ours["condition"] == str(theirs.condition)
        assert ours["items"] == theirs.item_ids.tolist()
        assert ours["scores"] == pytest.approx(theirs.scores.tolist(), abs=1e-6)
    assert set(told["items"]) <= {item for ours in told["by_condition"] for item in ours["items"]}
    assert min(told["items"]) >= 2**60  # far beyond what a float holds exactly
    assert set(told["items"]) <= set(world.ITEM_IDS.tolist())
    assert told["known_user"] is True


def test_a_condition_that_the_index_does_not_know_is_refused_with_its_instance(retriever: Retriever) -> None:
    with pytest.raises(BadInput, match=r"instances\[1\]: condition interest:8: the index knows no such interest"):
        answer(retriever, parse({"user": 3}, {"user": 3, "conditions": ["interest:8"]}))


def test_many_conditions_cost_one_pass_over_the_history(retriever: Retriever) -> None:
    passes = []
    hook = retriever.model.tower.norm_in.register_forward_hook(lambda *_: passes.append(1))
    try:
        answer(retriever, parse({"user": 3, "conditions": ["interest:7", "interest:9", "board:3", "none"]}))
    finally:
        hook.remove()
    assert len(passes) == 2  # the history once, all conditions together once


class TestMerging:
    def test_each_condition_gives_its_best_in_turn(self) -> None:
        assert merge([[(1, 0.9), (2, 0.8)], [(3, 0.2), (4, 0.1)]], 3) == [(1, 0.9), (3, 0.2), (2, 0.8)]

    def test_an_item_of_two_conditions_is_given_once_and_costs_the_second_no_turn(self) -> None:
        assert merge([[(1, 0.9), (2, 0.8)], [(1, 0.7), (3, 0.6)]], 4) == [(1, 0.9), (3, 0.6), (2, 0.8)]

    def test_a_short_list_leaves_its_turns_to_the_others(self) -> None:
        assert [item for item, _ in merge([[(1, 0.5)], [(2, 0.4), (3, 0.3), (4, 0.2)]], 4)] == [1, 2, 3, 4]

    def test_nothing_comes_of_nothing(self) -> None:
        assert merge([[], []], 3) == []
