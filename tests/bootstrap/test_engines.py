"""DuckDB and Spark give the same rows, from the same expressions."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clrflow.bootstrap.engine import Engine
from clrflow.bootstrap.settings import SparkSettings
from tests.bootstrap.random_worlds import BY_TIME, fill_outcome
from tests.bootstrap.worlds import World

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,  # a minute or more: nearly all of it is Spark's own plans
    pytest.mark.skipif(not shutil.which("java"), reason="Spark needs Java on PATH"),
]
# On small tables plans, tasks and generated code cost more than they gain.
SPARK = SparkSettings(
    master="local[2]",
    conf={
        "spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false", "spark.sql.codegen.wholeStage": "false",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
    },
)  # fmt: skip


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[Engine]:
    pytest.importorskip("pyspark")
    from clrflow.bootstrap.spark_engine import SparkEngine

    with SparkEngine(SPARK, scratch=str(tmp_path / "scratch")) as engine:
        yield engine
    assert not list((tmp_path / "scratch").iterdir())


@pytest.fixture(scope="session", autouse=True)
def _end_session() -> Iterator[None]:
    """One session serves all tests, as starting one takes seconds."""
    yield
    if "pyspark" in sys.modules:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()


def test_both_engines_write_equal_files(tmp_path: Path, spark: Engine) -> None:
    found: dict[str, Any] = {}
    for name, engine in (("duckdb", None), ("spark", spark)):
        world = World(folder=tmp_path / f"{name} day=1 é")
        fill_outcome(world)
        found[name] = world.run(engine=engine, split=BY_TIME)
    for name, table in found["duckdb"].tables.items():
        assert found["spark"].tables[name].equals(table), name
    assert found["spark"].fingerprints == found["duckdb"].fingerprints
    assert found["spark"].quality == found["duckdb"].quality


def test_ids_beyond_floats_and_below_zero_survive_spark_beside_nulls(tmp_path: Path, spark: Engine) -> None:
    found = []
    big, other = 2**53 + 1, -(2**53) - 3
    for name, engine in (("duckdb", None), ("spark", spark)):
        world = World(folder=tmp_path / name)
        world.item(big, 2**54 + 1)
        world.item(other, -(2**54) - 3)
        for user in (-7, 2**55 + 1):
            for day, item in enumerate((big, other, big, other, big)):
                logged: dict[str, Any] = {"condition_type": "item", "condition_id": other} if day == 2 else {}
                world.event(user, item, day, **logged)  # the column is null elsewhere
        found.append(world.run(engine=engine, split={"by": "last_requests"}))
    rows = found[1].requests()
    assert rows == found[0].requests()
    assert {row["user_id"] for row in rows} == {-7, 2**55 + 1}
    assert {one["id"] for row in rows for one in row["conditions"]} >= {big, other, 2**54 + 1, -(2**54) - 3}
