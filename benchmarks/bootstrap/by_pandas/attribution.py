"""Serving the generators, and which condition an engagement belongs to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pandas as pd

from benchmarks.bootstrap.by_pandas.boards import sizes_at
from benchmarks.bootstrap.by_pandas.frames import Frame, seconds, without
from benchmarks.bootstrap.by_pandas.world import World
from clrflow.bootstrap.attribution import PRIME
from clrflow.contracts import ATTRIBUTED, BOARD, CONDITION_TYPES, FALLBACK, KNOWN, LOGGED, ORACLE, TRAIN, UNCONDITIONAL

KEYS = ["query", "kind", "condition_id"]
ROLES = [KNOWN, FALLBACK, ORACLE]
SOURCES = [LOGGED, ATTRIBUTED, FALLBACK, ORACLE, UNCONDITIONAL]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """What one generator answered; `kind` is the place of its condition type in contracts.CONDITION_TYPES."""

    asked: Frame
    """query, kind, condition_id, list of held-out requests that are kept."""
    lists: Frame
    """list, item_id, rank, score: the lists that these ask for."""
    hits: Frame
    """row, kind, condition_id."""


def serve(
    world: World,
    kind: int,
    conditions: Frame,
    candidates: Callable[[World, Frame], Frame],
    sampled: np.ndarray,
    first_list: int,
    at_once: int,
) -> Served:
    """Ask for the lists of all requests, so many at once; those of sampled ones are kept and numbered from `first_list` on."""
    keys = ["condition_id", "state", "period"]
    asked = conditions[(conditions["query"] < world.num_requests).to_numpy()]
    asked = asked.assign(period=world.queries["period"].to_numpy()[asked["query"]])
    wanted = asked[keys].drop_duplicates().sort_values(["period", "condition_id", "state"], ignore_index=True)
    wanted["list"] = np.arange(len(wanted)) + first_list
    asked = asked.merge(wanted, on=keys)[["query", "condition_id", "list", "score"]]
    held = np.zeros(world.num_requests, bool)
    held[sampled] = True
    kept_lists = asked["list"][held[asked["query"]]].unique()
    engaged = world.cut.engagements[["query", "item_id"]].assign(row=np.arange(len(world.cut.engagements)))
    lists, hits = [_empty(list=np.int64, item_id=np.int64, rank=np.int64, score=np.float64)], [_empty(row=np.int64, condition_id=np.int64)]
    for low in range(0, len(wanted), at_once):
        part = wanted.iloc[low : low + at_once]
        listed = candidates(world, part)
        near = asked[asked["list"].between(part["list"].iloc[0], part["list"].iloc[-1]).to_numpy()]
        found = near.merge(engaged, on="query").merge(listed[["list", "item_id"]], on=["list", "item_id"])
        hits.append(found[["row", "condition_id"]])
        lists.append(listed[listed["list"].isin(kept_lists).to_numpy()])
    return Served(
        asked=asked[held[asked["query"]]].assign(kind=kind),
        lists=pd.concat(lists, ignore_index=True),
        hits=pd.concat(hits, ignore_index=True).assign(kind=kind),
    )


def _empty(**columns: type) -> Frame:
    return pd.DataFrame({name: np.empty(0, kind) for name, kind in columns.items()})


def attribute(world: World, known: Frame, hits: Frame) -> tuple[Frame, Frame]:
    """Conditions (KEYS, index, role, state, score) and targets (query, row, condition, weight, generator, source).

    `known` has KEYS, state, score and index. Roles and sources are places in ROLES and SOURCES; `generator` is a category.
    """
    engaged = world.cut.engagements
    engaged = engaged.assign(row=np.arange(len(engaged)), kind=_kinds(engaged))
    is_logged = engaged["named"].to_numpy() & (engaged["kind"] > 0).to_numpy()
    logged = engaged[is_logged][["row", *KEYS, "weight", "generator"]]
    hits = hits[~is_logged[hits["row"]]]
    explained = is_logged.copy()
    explained[hits["row"]] = True
    factor = world.settings.fallback_factor
    fallback = _draw(world, engaged[~explained & (factor > 0)], salt=1)
    oracle = _draw(world, engaged[(engaged["split"] != TRAIN).to_numpy()], salt=2)
    conditions = pd.concat([known.assign(role=0), _added(world, known, logged, fallback, oracle)], ignore_index=True)

    index = conditions[[*KEYS, "role", "index"]].rename(columns={"index": "condition"})
    index = index[(index["query"] < world.num_requests).to_numpy()]
    as_known, as_fallback, as_oracle = (index[(index["role"] == role).to_numpy()].drop(columns="role") for role in range(3))
    in_known = logged.merge(as_known, on=KEYS)
    appended = logged[~logged["row"].isin(in_known["row"])].merge(as_fallback, on=KEYS)
    hits = hits.assign(query=engaged["query"].to_numpy()[hits["row"]], weight=engaged["weight"].to_numpy()[hits["row"]])
    hits["weight"] = hits["weight"] / hits.groupby("row", sort=False)["row"].transform("size")
    hits["generator"] = np.array(CONDITION_TYPES, object)[hits["kind"]]
    fallback = fallback.assign(weight=fallback["weight"] * factor)
    parts = [in_known, appended, hits.merge(as_known, on=KEYS), fallback.merge(as_fallback, on=KEYS), oracle.merge(as_oracle, on=KEYS)]
    parts.append(engaged.assign(condition=-1))
    categories = sorted({"", *CONDITION_TYPES, *engaged["generator"].cat.categories})
    rows = []
    for part, source in zip(parts, (0, 0, 1, 2, 3, 4), strict=True):
        names = part["generator"] if "generator" in part else pd.Series("", index=part.index)
        generator = names.astype(pd.CategoricalDtype(categories)).fillna("")
        rows.append(part[["query", "row", "condition", "weight"]].assign(generator=generator, source=source))
    return conditions, pd.concat(rows, ignore_index=True)


def _kinds(engaged: Frame) -> np.ndarray:
    """Places of logged condition types among CONDITION_TYPES, 0 for none and unknown ones."""
    types = engaged["condition_type"].cat
    places = [CONDITION_TYPES.index(name) if name in CONDITION_TYPES else 0 for name in types.categories]
    return np.array([*places, 0])[types.codes]


def _draw(world: World, engaged: Frame, *, salt: int) -> Frame:
    """One interest of each engagement's item: row, KEYS, weight; Lehmer's generator, as in clrflow.bootstrap.attribution."""
    seed = (world.settings.seed * 2 + salt) % PRIME
    mixed = engaged["user_id"] % PRIME * 48_271 + engaged["item_id"] % PRIME * 69_621 + seconds(engaged["timestamp"]) % PRIME * 40_692
    number = (mixed % PRIME * 16_807 + seed * 630_360_016 % PRIME) % PRIME * 48_271 % PRIME
    drawn = engaged[["row", "query", "item_id", "weight"]].assign(number=number // 1024)
    joined = drawn.merge(world.interests, on="item_id")
    joined = joined[(joined["number"] % joined["num_interests"] == joined["place"]).to_numpy()]
    return joined.assign(kind=1, condition_id=joined["interest_id"])[["row", *KEYS, "weight"]]


def _added(world: World, known: Frame, logged: Frame, fallback: Frame, oracle: Frame) -> Frame:
    """Conditions that targets bring, behind the known ones of their request: KEYS, index, role, state, score."""
    unknown = without(logged[KEYS], known, KEYS)
    added = pd.concat([unknown, fallback[KEYS]]).drop_duplicates().assign(role=1)
    added = pd.concat([added, oracle[KEYS].drop_duplicates().assign(role=2)], ignore_index=True)
    order = np.lexsort([added[name].to_numpy() for name in ("condition_id", "kind", "role", "query")])
    added = added.iloc[order].reset_index(drop=True)
    num_known = np.bincount(known["query"], minlength=len(world.queries))
    added["index"] = num_known[added["query"]] + added.groupby("query", sort=False).cumcount()
    board = CONDITION_TYPES.index(BOARD)
    sizes = sizes_at(world, added[(added["kind"] == board).to_numpy()][["query", "condition_id"]].drop_duplicates())
    added = added.merge(sizes.assign(kind=board), on=KEYS, how="left")
    return added.assign(state=added["state"].fillna(0).astype(np.int64), score=0.0)
