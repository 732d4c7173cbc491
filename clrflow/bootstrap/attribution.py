"""Which condition does an engagement belong to?

What the log names wins. Else every known condition whose candidates held the item, in equal shares. Else a condition drawn from the item's own
interests, marked as fallback and with less weight. Besides, every engagement gives the unconditional example, and held-out ones an oracle.
"""

from __future__ import annotations

import dataclasses

import ibis

from clrflow.bootstrap.engine import Engine
from clrflow.bootstrap.expressions import Column, Table, place_in, seconds_of
from clrflow.bootstrap.generators.base import View
from clrflow.bootstrap.generators.board import states_at
from clrflow.bootstrap.serve import Served
from clrflow.contracts import (
    ATTRIBUTED,
    BOARD,
    CONDITION_TYPES,
    FALLBACK,
    INTEREST,
    ITEM,
    KNOWN,
    LOGGED,
    ORACLE,
    TRAIN,
    UNCONDITIONAL,
)

PRIME = 2_147_483_647
"""Modulus of the draws: products of two remainders stay below 2^63 on every engine."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attribution:
    """Rows of the dataset before they are nested; kept in the engine."""

    conditions: Table
    """query_id, index (0-based in the query, known ones first), role, condition_type, condition_id, state, score."""
    targets: Table
    """request_id, row, condition (index or -1), weight, generator, source."""


def attribute(view: View, served: Served, engagements: Table) -> Attribution:
    """Join engagements to conditions; see the module's rules."""
    engine, factor = view.engine, view.settings.fallback_factor
    known = engine.keep("known_conditions", _ranked(served.known))
    logged = engine.keep("logged", _logged(engagements))
    unlogged = engagements.anti_join(logged, "row")
    hits = served.hits.semi_join(unlogged, "row")
    hits = hits.group_by(["row", "condition_type", "condition_id"]).aggregate(generator=hits.generator.min())
    hits = engine.keep("attributed", hits.join(engagements.select("row", "request_id", "weight"), "row"))
    drawn = unlogged.anti_join(hits, "row") if factor > 0 else unlogged.filter(ibis.literal(False))
    fallback = engine.keep("fallback", _draw(drawn, view, salt=1))
    oracle = engine.keep("oracle", _draw(engagements.filter(engagements.split != TRAIN), view, salt=2))

    conditions = engine.keep("conditions", _numbered(view, known, logged, fallback, oracle))
    index = conditions.select("role", "condition_type", "condition_id", request_id="query_id", condition="index")
    index = index.mutate(condition=index.condition.cast("int32"))
    as_known = index.filter(index.role == KNOWN).drop("role")
    as_fallback = index.filter(index.role == FALLBACK).drop("role")
    as_oracle = index.filter(index.role == ORACLE).drop("role")
    keys = ["request_id", "condition_type", "condition_id"]

    in_known = logged.left_join(as_known, keys).drop("request_id_right", "condition_type_right", "condition_id_right")
    appended = in_known.filter(in_known.condition.isnull()).drop("condition").join(as_fallback, keys)
    shares = hits.mutate(share=hits.weight / hits.count().over(ibis.window(group_by="row")))
    source = {name: ibis.literal(name) for name in (LOGGED, ATTRIBUTED, FALLBACK, ORACLE, UNCONDITIONAL)}
    nobody = ibis.literal("")
    columns = ["request_id", "row", "condition", "weight", "generator"]
    rows = [
        in_known.filter(in_known.condition.notnull()).select(*columns, source=source[LOGGED]),
        appended.select(*columns, source=source[LOGGED]),
        shares.join(as_known, keys).select("request_id", "row", "condition", "generator", weight="share", source=source[ATTRIBUTED]),
        fallback.join(as_fallback, keys).select(
            "request_id", "row", "condition", weight=fallback.weight * factor, generator=nobody, source=source[FALLBACK]
        ),
        oracle.join(as_oracle, keys).select("request_id", "row", "condition", "weight", generator=nobody, source=source[ORACLE]),
        engagements.select(
            "request_id", "row", "weight", condition=ibis.literal(-1, "int32"), generator=engagements.generator.fill_null(""),
            source=source[UNCONDITIONAL],
        ),
    ]  # fmt: skip
    aligned = [part.select(*columns, "source") for part in rows]
    targets = engine.keep("targets", ibis.union(*aligned))
    return Attribution(conditions=conditions, targets=targets)


def known_conditions(known: Table) -> Table:
    """Attribution.conditions where there are no targets; `known` is what serve.ask_conditions gives."""
    ranked = _ranked(known).mutate(role=ibis.literal(KNOWN))
    return ranked.select("query_id", "index", "role", "condition_type", "condition_id", "state", "score")


def _ranked(known: Table) -> Table:
    """Known conditions with their place; one that two generators bring stands once, with the better score."""
    merged = known.group_by(["query_id", "type_order", "condition_type", "condition_id"]).aggregate(
        state=known.state.max(), score=known.score.max()
    )
    return merged.mutate(index=place_in(["type_order", ibis.desc("score"), "condition_id"], "query_id"))


def _logged(engagements: Table) -> Table:
    """Engagements whose log names a condition of a type that is known here: row, request_id, condition_type, condition_id, generator."""
    usable = engagements.filter(engagements.condition_type.isin([INTEREST, ITEM, BOARD]) & engagements.condition_id.notnull())
    name = usable.generator.fill_null("")
    return usable.select("row", "request_id", "weight", "condition_type", "condition_id", generator=name)


def _draw(engagements: Table, view: View, *, salt: int) -> Table:
    """One interest of each engagement's item, from numbers that stay the same whatever else is in the log.

    Lehmer's generator on user, item and time; engagements of items without interests have no row.
    """
    seed = (view.settings.seed * 2 + salt) % PRIME
    mixed = _remainder(engagements.user_id) * 48_271 + _remainder(engagements.item_id) * 69_621
    mixed = mixed + _remainder(seconds_of(engagements.timestamp)) * 40_692
    number = _remainder(_remainder(_remainder(mixed) * 16_807 + seed * 630_360_016 % PRIME) * 48_271)
    drawn = engagements.select("row", "request_id", "item_id", "weight", number=number)
    joined = drawn.join(view.item_interests, "item_id")
    # The low digits of such generators are the poor ones.
    joined = joined.filter((joined.number // 1024).cast("int64") % joined.num_interests == joined.place)
    return joined.select("row", "request_id", "weight", condition_type=ibis.literal(INTEREST), condition_id="interest_id")


def _remainder(value: Column) -> Column:
    """value mod PRIME, never negative."""
    return (value % PRIME + PRIME).cast("int64") % PRIME


def _numbered(view: View, known: Table, logged: Table, fallback: Table, oracle: Table) -> Table:
    """All conditions of all queries: known ones by type and score, then what targets added.

    A logged condition that no generator names for the user is added because of its target, so its role is that of a fallback: counting it as
    known would let evaluation profit from what was engaged.
    """
    keys = ["request_id", "condition_type", "condition_id"]
    as_known = known.select("condition_type", "condition_id", request_id="query_id")
    unknown = logged.anti_join(as_known, keys).select(*keys)
    added = ibis.union(unknown, fallback.select(*keys)).distinct().mutate(role=ibis.literal(FALLBACK), role_order=ibis.literal(0, "int64"))
    oracles = oracle.select(*keys).distinct().mutate(role=ibis.literal(ORACLE), role_order=ibis.literal(1, "int64"))
    added = view.engine.keep("added_conditions", added.union(oracles))

    boards = added.filter(added.condition_type == BOARD).select(query_id="request_id", board_id="condition_id")
    boards = boards.join(view.queries.select("query_id", "requested_at"), "query_id")
    states = states_at(view, boards).select(request_id="query_id", condition_id="board_id", state="state")
    states = states.mutate(condition_type=ibis.literal(BOARD))
    sizes = known.group_by("query_id").aggregate(num_known=known.count()).select("num_known", request_id="query_id")
    added = added.left_join(states, keys).select(*added.columns, "state").left_join(sizes, "request_id")
    order = {name: place for place, name in enumerate(CONDITION_TYPES)}
    added = added.mutate(type_order=added.condition_type.cases(*order.items()).cast("int64"))
    added = added.mutate(place=place_in(["role_order", "type_order", "condition_id"], "request_id"))
    added = added.select(
        "role", "condition_type", "condition_id",
        query_id="request_id",
        index=added.num_known.fill_null(0) + added.place,
        state=added.state.fill_null(0),
        score=ibis.literal(0.0),
    )  # fmt: skip
    columns = ["query_id", "index", "role", "condition_type", "condition_id", "state", "score"]
    return known.mutate(role=ibis.literal(KNOWN)).select(*columns).union(added.select(*columns))


def drop_scratch(engine: Engine) -> None:
    """Forget what only the attribution needed."""
    engine.drop("logged", "attributed", "fallback", "oracle", "added_conditions", "known_conditions")
