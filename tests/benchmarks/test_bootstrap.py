"""The peers of the bootstrap benchmark do the same work as the step: equal rows on small logs with ties, boards, logged conditions and gaps."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.bootstrap.__main__ import differing
from benchmarks.bootstrap.by_pandas.step import bootstrap as by_pandas
from benchmarks.bootstrap.by_polars.step import bootstrap as by_polars
from benchmarks.bootstrap.co_engagement import by_generator, by_hand
from benchmarks.bootstrap.counting import engagements_in, engagements_out, weigh_pairs
from benchmarks.bootstrap.heuristics import explained, recall
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.data.tables import read_table
from clrflow.manifest import Output
from tests.bootstrap.worlds import World

TABLES = ("requests", "candidates", "item_statistics", "user_states")
BY_TIME: dict[str, Any] = {"split": {"by": "time", "validation_days": 1.0, "test_days": 1.0}}
VARIANTS: dict[str, dict[str, Any]] = {
    "whole days": BY_TIME,
    "parts of days": {"split": {"by": "time", "validation_days": 1.5, "test_days": 0.7}},
    "last requests, no sessions": {
        "split": {"by": "last_requests"}, "request": {"max_targets": 3, "session_gap_minutes": None, "max_history": 5}, "granularity_days": 2.0,
    },
    "no item generator, few lists, no fallback": BY_TIME | {
        "item": {"enabled": False}, "board": {"num_candidates": 3, "max_conditions": 1}, "fallback_factor": 0.0, "max_candidate_requests": 4,
    },
}  # fmt: skip


def fill(world: World) -> World:
    """Ten days of random users: ties, impressions, boards, follows, and conditions that the log names rightly, wrongly and without an id."""
    draw = random.Random(4)
    for item in range(1, 31):
        vector = (draw.choice((0.2, 0.6, 1.0)), draw.choice((0.2, 0.6, 1.0)))
        world.item(item, *({1 + item % 4, 5 + item % 3} if item % 7 else ()), day=-1 if item < 22 else 4.5, vector=vector)
    for user in range(-2, 8):
        for interest in draw.sample(range(1, 8), 2):
            world.follow(user, interest, draw.uniform(-2, 9))
        for day in range(10):
            for _ in range(draw.randrange(6)):
                item, hour = draw.randrange(1, 31), draw.randrange(24)
                action = draw.choice(("click", "click", "save", "impression"))
                logged: dict[str, Any] = {}
                if draw.random() < 0.3:
                    kind = draw.choice(("interest", "item", "board", "none"))
                    identity = {
                        "interest": draw.choice((2, 6, None)),
                        "item": draw.choice((3, 5, 999)),
                        "board": user * 10 + 1,
                        "none": None,
                    }[kind]
                    logged = {"condition_type": kind, "condition_id": identity, "generator": draw.choice(("theirs", None))}
                world.event(user, item, day, hour * 3600 + draw.randrange(3) * 600, action=action, **logged)
                if action == "save":
                    world.add_to_board(user * 10 + item % 2, user, item, day + hour / 24)
    world.boards = list({(row["board_id"], row["item_id"]): row for row in world.boards}.values())
    return world


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_peers_write_the_rows_that_the_step_writes(tmp_path: Path, variant: str) -> None:
    world = fill(World(folder=tmp_path / "ours"))
    ours = world.run(**VARIANTS[variant])
    assert len({target["source"] for row in ours.rows("requests") for target in row["targets"]}) >= 4
    assert len(ours.rows("candidates")) > 3
    settings = BootstrapSettings.model_validate({**world.settings.model_dump(), **VARIANTS[variant]})
    sources = world.sources()
    peers: dict[str, Callable[..., dict[str, Output]]] = {
        "pandas": by_pandas, "pandas in parts": functools.partial(by_pandas, lists_at_once=7), "polars": by_polars,
    }  # fmt: skip
    for peer, bootstrap in peers.items():
        outputs = bootstrap(sources, settings, world.data, str(tmp_path / peer))
        for name in TABLES:
            assert read_table(outputs[name].uri).to_pylist() == ours.rows(name), (peer, name)


def test_rows_that_differ_are_counted() -> None:
    one = pa.table({"a": [1, 2, 3], "b": [[1], [], [2, 3]]})
    assert differing(one, one.slice(0)) == 0
    assert differing(one, pa.table({"a": [1, 2, 4], "b": [[1], [7], [2, 3]]})) == 2
    assert differing(one, one.slice(0, 1)) == 2


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of the clean tables and of the step's."""
    world = fill(World(folder=tmp_path_factory.mktemp("written")))
    return {**world.sources(), **{name: str(world.folder / "out" / name) for name in world.run(**BY_TIME).tables}}


def test_engagements_are_counted_in_and_out(written: dict[str, str]) -> None:
    rows = read_table(written["events"]).to_pylist()
    positive = sum(row["action"] in ("click", "save") for row in rows)
    assert engagements_in(written["events"], ["click", "save"]) == engagements_out(written["requests"]) == positive
    assert engagements_in(written["events"], ["click"]) < positive


def test_pairs_spell_out_the_requests(written: dict[str, str], tmp_path: Path) -> None:
    weights = weigh_pairs(written["requests"], str(tmp_path / "pairs"))
    spelt = [
        (row["request_id"], row["history_items"], None if target["condition"] < 0 else row["conditions"][target["condition"]], target)
        for row in read_table(written["requests"]).to_pylist()
        for target in row["targets"]
    ]
    pairs = read_table(str(tmp_path / "pairs" / "in-order")).to_pylist()
    assert [(row["request_id"], row["history_items"], row["asked"], row["target"]) for row in pairs] == spelt
    assert weights["pairs"] == len(spelt) > weights["requests"]
    assert weights["pair_arrow"] > weights["request_arrow"] > 0


def test_the_generators_lists_equal_those_of_hand_written_sql(written: dict[str, str]) -> None:
    ours, sql = (lists(BootstrapSettings(), written["requests"]) for lists in (by_generator, by_hand))
    assert ours["lists"] == sql["lists"] > 10
    assert ours["checksum"] == sql["checksum"]
    ((num_rows, _),) = sql["checksum"]
    assert int(num_rows) > 100


def test_recall_counts_the_first_engagements_that_the_lists_hold(written: dict[str, str]) -> None:
    # Lists of 100 hold all that was engaged before and is not in the history, so a set does as well as an order.
    lists: dict[tuple[int, str], set[int]] = {}
    for row in read_table(written["candidates"]).to_pylist():
        lists.setdefault((row["request_id"], row["generator"]), set()).update(row["items"])
    held_out = [row for row in read_table(written["requests"]).to_pylist() if row["split"] != "train"]
    found = recall(written["items"], written["requests"], written["candidates"])
    assert found.pop("requests") == len(held_out)
    for generator, share in found.items():
        hits = sum(
            row["targets"][0]["item_id"] in lists.get((row["request_id"], generator), set()) - set(row["history_items"]) for row in held_out
        )
        assert share == hits / len(held_out)
    assert max(found.values()) > 0


def test_shares_say_what_explains_an_engagement(written: dict[str, str]) -> None:
    by_engagement: dict[tuple[int, int], set[str]] = {}
    for row in read_table(written["requests"]).to_pylist():
        for target in row["targets"]:
            names = by_engagement.setdefault((row["request_id"], target["position"]), set())
            names.add(target["source"])
            if target["source"] == "attributed":
                names.add(row["conditions"][target["condition"]]["type"])
    shares = explained(written["requests"])
    assert shares.pop("engagements") == len(by_engagement)
    assert shares == {name: pytest.approx(sum(name in names for names in by_engagement.values()) / len(by_engagement)) for name in shares}
    assert all(share > 0 for share in shares.values())
