"""The heaviest part of the item generator, its graph and lists: the generator's Ibis expressions against SQL written by hand, on one engine.

Both get the same three tables, taken from written requests outside of the measured time, and as many lists at a time.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from clrflow.bootstrap.duckdb_engine import LISTS_AT_ONCE, DuckdbEngine
from clrflow.bootstrap.expressions import between
from clrflow.bootstrap.generators.base import View
from clrflow.bootstrap.generators.item import DAMPING, WINDOW, ItemGenerator
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.data.tables import register

PREPARE = """
CREATE TEMP TABLE learnt AS
    SELECT user_id, item_id, row_number() OVER (PARTITION BY user_id ORDER BY request_id, position) - 1 AS seq, period
    FROM (
        SELECT request_id, user_id, target.item_id, target.position, epoch_us(target.timestamp) // 86400000000 AS period
        FROM (SELECT request_id, user_id, unnest(targets) AS target FROM requests WHERE split = 'train')
        WHERE target.condition = -1
    );
CREATE TEMP TABLE wanted AS
    SELECT row_number() OVER (ORDER BY period, condition_id) - 1 AS list_id, condition_id, 0::BIGINT AS state, period
    FROM (
        SELECT DISTINCT condition.id AS condition_id, period
        FROM (SELECT unnest(conditions) AS condition, epoch_us(requested_at) // 86400000000 AS period FROM requests)
        WHERE condition.type = 'item' AND condition.role = 'known'
    );
CREATE TEMP TABLE popularity AS
    WITH periods AS (SELECT DISTINCT period FROM wanted)
    SELECT periods.period, item_id, count(*) AS total FROM learnt JOIN periods ON learnt.period < periods.period GROUP BY ALL;
"""

GRAPH = f"""
CREATE TEMP TABLE edges AS
    WITH pairs AS (
        SELECT least(one.item_id, other.item_id) AS item_id, greatest(one.item_id, other.item_id) AS other_id, other.period AS since,
            count(*)::DOUBLE AS n
        FROM (SELECT user_id, item_id, seq + unnest(range(1, {WINDOW + 1})) AS seq FROM learnt) AS one
        JOIN learnt AS other USING (user_id, seq)
        WHERE one.item_id <> other.item_id
        GROUP BY ALL
    )
    FROM pairs UNION ALL SELECT other_id, item_id, since, n FROM pairs
"""

LISTS = f"""
CREATE OR REPLACE TEMP TABLE listed AS
    WITH lists AS (
        SELECT list_id, condition_id, wanted.period, total AS own_total
        FROM wanted JOIN popularity ON item_id = condition_id AND popularity.period = wanted.period
        WHERE list_id >= $low AND list_id < $high
    ), counts AS (
        SELECT list_id, any_value(period) AS period, any_value(own_total) AS own_total, other_id, sum(n) AS n
        FROM lists JOIN edges ON edges.item_id = lists.condition_id AND since < period
        GROUP BY list_id, other_id
    )
    SELECT list_id, other_id AS item_id, n / sqrt((own_total + {DAMPING}) * (total + {DAMPING})) AS score,
        row_number() OVER (PARTITION BY list_id ORDER BY score DESC, other_id) AS rank
    FROM counts JOIN popularity ON popularity.item_id = other_id AND popularity.period = counts.period
    QUALIFY rank <= $num_candidates
"""

CHECKSUM = "SELECT count(*), bit_xor(hash(list_id, item_id, rank, score)) FROM {}"


def _prepared(settings: BootstrapSettings, requests: str) -> tuple[DuckdbEngine, int]:
    engine = DuckdbEngine(memory_limit=settings.memory_limit)
    register(engine.backend.con, "requests", requests)
    engine.backend.con.execute(PREPARE)
    (number,) = engine.backend.con.execute("SELECT count(*) FROM wanted").fetchone()
    return engine, int(number)


def by_generator(settings: BootstrapSettings, requests: str) -> dict[str, Any]:
    """Seconds and a checksum of all lists, by the generator."""
    engine, number = _prepared(settings, requests)
    with engine:
        given: dict[str, Any] = {name: engine.table(name) for name in ("learnt", "popularity")} | {"engine": engine, "settings": settings}
        rest: dict[str, Any] = {field.name: given.get(field.name) for field in dataclasses.fields(View) if field.init}
        view = View(**rest)
        wanted, generator = engine.table("wanted"), ItemGenerator()
        con, started, sums, seconds = engine.backend.con, time.monotonic(), [], 0.0
        for low in range(0, number, LISTS_AT_ONCE):
            part = engine.keep("wanted_now", between(wanted, "list_id", low, low + LISTS_AT_ONCE))
            listed = generator.candidates(view, part)
            engine.keep("listed", listed.select("list_id", "item_id", "rank", "score"))
            seconds += time.monotonic() - started
            sums.append([str(value) for value in con.execute(CHECKSUM.format("listed")).fetchone()])
            started = time.monotonic()
        return {"seconds": seconds, "lists": number, "checksum": sums}


def by_hand(settings: BootstrapSettings, requests: str) -> dict[str, Any]:
    """Seconds and a checksum of all lists, by hand-written SQL."""
    engine, number = _prepared(settings, requests)
    with engine:
        con, started, sums, seconds = engine.backend.con, time.monotonic(), [], 0.0
        con.execute(GRAPH)
        for low in range(0, number, LISTS_AT_ONCE):
            con.execute(LISTS, {"low": low, "high": low + LISTS_AT_ONCE, "num_candidates": settings.item.num_candidates})
            seconds += time.monotonic() - started
            sums.append([str(value) for value in con.execute(CHECKSUM.format("listed")).fetchone()])
            started = time.monotonic()
        return {"seconds": seconds, "lists": number, "checksum": sums}
