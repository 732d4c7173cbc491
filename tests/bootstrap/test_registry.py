"""A team's own candidate generator: one file, named in the settings or put beside the others."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from clrflow.bootstrap.generators import enabled_generators
from clrflow.bootstrap.generators.base import REGISTRY
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.errors import ConfigError
from tests.bootstrap.worlds import World, conditioned

TRENDING = '''
import ibis
from clrflow.bootstrap.expressions import best
from clrflow.bootstrap.generators import register


@register
class Trending:
    """Everybody has interest 7 as a condition; it brings what was popular before the period."""

    name = "trending"
    condition_type = "interest"

    def enabled(self, settings):
        return settings.generator_options.get("trending", {}).get("on", False)

    def conditions(self, view):
        queries = view.queries.select("query_id")
        return queries.mutate(condition_id=ibis.literal(7, "int64"), state=ibis.literal(0, "int64"), score=ibis.literal(1.0))

    def candidates(self, view, wanted):
        joined = wanted.join(view.popularity, "period").select("list_id", "item_id", score="total")
        ranked = best(joined, 10, group_by=["list_id"], order_by=[ibis.desc("score"), "item_id"])
        return ranked.mutate(score=ranked.score.cast("float64"))

    def holding(self, view, wanted, engaged):
        return None

    def shown_items(self, view, wanted):
        return None
'''
ONLY_TRENDING = {
    "interest": {"enabled": False}, "item": {"enabled": False}, "board": {"enabled": False}, "generator_modules": ("our_trending",),
    "generator_options": {"trending": {"on": True}},
}  # fmt: skip


@pytest.fixture
def our_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module outside the project, which is gone afterwards."""
    file = tmp_path / "code" / "our_trending.py"
    file.parent.mkdir()
    file.write_text(TRENDING)
    monkeypatch.syspath_prepend(str(file.parent))
    before = dict(REGISTRY)
    yield file
    sys.modules.pop("our_trending", None)
    REGISTRY.clear()
    REGISTRY.update(before)


def test_a_generator_in_a_file_of_its_own_explains_engagements(world: World, our_module: Path) -> None:
    for user in (1, 2, 3):
        world.event(user, 10, 0)
        world.event(user, 10, 1)
    world.event(9, 10, 3)
    rows = world.run(split={"by": "time", "validation_days": 1.0, "test_days": 1.0}, **ONLY_TRENDING).requests(1)
    assert conditioned(rows[1], 10) == [("attributed", "interest", 7, 1.0)]
    assert [target["generator"] for target in rows[1]["targets"]] == ["", "trending"]


def test_the_built_in_ones_come_by_name_in_the_order_of_condition_types() -> None:
    assert [generator.name for generator in enabled_generators(BootstrapSettings())] == ["interest", "item", "board"]


def test_a_module_that_is_not_there_and_options_of_nobody_are_refused(our_module: Path) -> None:
    with pytest.raises(ConfigError, match="generator_modules names 'nowhere', which can't be imported"):
        enabled_generators(BootstrapSettings(generator_modules=("nowhere",)))
    with pytest.raises(ConfigError, match="generator_options has trend, and no generator is named so; there are board, interest, item"):
        enabled_generators(BootstrapSettings(generator_options={"trend": {}}))


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("item", "item", "two candidate generators are named 'item'"),
        ("mood", "mood", "'mood' is no condition type; the model knows interest, item, board"),
    ],
)
def test_a_taken_name_and_an_unknown_condition_type_are_refused(our_module: Path, name: str, kind: str, message: str) -> None:
    our_module.write_text(textwrap.dedent(TRENDING).replace('"trending"', f'"{name}"').replace('"interest"', f'"{kind}"'))
    with pytest.raises(ConfigError, match=message):
        enabled_generators(BootstrapSettings(generator_modules=("our_trending",)))
