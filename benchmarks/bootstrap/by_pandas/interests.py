"""The interest generator: followed and inferred interests → popular and fresh items of the interest."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.bootstrap.by_pandas.frames import Frame, as_of, best, newest, period_of, without
from benchmarks.bootstrap.by_pandas.world import World
from clrflow.bootstrap.generators.interest import LEAST_ITEMS, RECENT_ITEMS


def conditions(world: World) -> Frame:
    """query, condition_id, state, score."""
    both = _inferred(world).merge(_followed(world), on=["query", "interest_id"], how="outer")
    strength = both["strength"].fillna(0.0).to_numpy()
    both["score"] = strength / (1 + strength) + both["follows"].notna().to_numpy().astype(np.float64)
    order = [-both["score"].to_numpy(), both["interest_id"].to_numpy()]
    chosen = best(both, world.settings.interest.max_conditions, "query", order)
    return chosen.assign(condition_id=chosen["interest_id"], state=0)[["query", "condition_id", "state", "score"]]


def _followed(world: World) -> Frame:
    asked = world.queries[["user_id", "period"]].assign(query=np.arange(len(world.queries)))
    joined = asked.merge(world.followed, on="user_id")
    return joined[(joined["since"] < joined["period"]).to_numpy()][["query", "interest_id"]].assign(follows=True)


def _inferred(world: World) -> Frame:
    recent = world.recent[(world.recent["age"] <= RECENT_ITEMS).to_numpy()]
    carried = recent[["query", "item_id"]].merge(world.interests[["item_id", "interest_id"]], on="item_id")
    counts = carried.groupby(["query", "interest_id"], sort=False).size().rename("n").reset_index()
    distinct = carried.drop_duplicates().groupby(["query", "interest_id"], sort=False).size().rename("num_items").reset_index()
    counts = counts.merge(distinct, on=["query", "interest_id"])
    counts = counts[(counts["num_items"] >= LEAST_ITEMS).to_numpy()]
    counts["num_recent"] = np.bincount(recent["query"], minlength=len(world.queries))[counts["query"]]
    counts["period"] = world.queries["period"].to_numpy()[counts["query"]]
    base = world.popularity.merge(world.interests[["item_id", "interest_id"]], on="item_id")
    base = base.groupby(["period", "interest_id"], sort=False)["total"].sum().rename("interest_total").reset_index()
    totals = world.popularity.groupby("period")["total"].sum().rename("all_total").reset_index()
    joined = counts.merge(base.merge(totals, on="period"), on=["period", "interest_id"], how="left")
    share = joined["n"] / joined["num_recent"]
    rate = (joined["interest_total"].fillna(0) + 1) / (joined["all_total"].fillna(0) + 1)
    return joined[["query", "interest_id"]].assign(strength=share * np.sqrt(share / rate))


def candidates(world: World, wanted: Frame) -> Frame:
    """list, item_id, rank, score."""
    settings = world.settings.interest
    num_fresh = round(settings.num_candidates * settings.fresh_share)
    carried = world.interests[["item_id", "interest_id"]].rename(columns={"interest_id": "condition_id"})
    asked = wanted[["list", "condition_id", "period"]]
    periods = asked["period"].unique()
    known = world.popularity[world.popularity["period"].isin(periods).to_numpy()]
    popular = asked.merge(carried.merge(known, on="item_id"), on=["condition_id", "period"])
    popular["all_total"] = popular.groupby("list", sort=False)["total"].transform("sum")
    popular = best(popular, settings.num_candidates - num_fresh, "list", [-popular["total"].to_numpy(), popular["item_id"].to_numpy()])
    popular["score"] = popular["total"] / popular["all_total"]
    popular = popular[["list", "item_id", "rank", "score"]]
    if num_fresh == 0:
        return popular
    born = carried.merge(world.items, on="item_id")
    born = born.iloc[np.lexsort([born[name].to_numpy() for name in ("item_id", "created_at", "condition_id")])]
    born["period"] = period_of(born["created_at"].to_numpy(), world.period_s)
    born["number"] = born.groupby("condition_id", sort=False).cumcount() + 1
    there = as_of(born[["condition_id", "period"]], periods, "condition_id")
    fresh = newest(asked.merge(there, on=["condition_id", "period"]), "total", settings.num_candidates, "number")
    fresh = fresh.merge(born[["condition_id", "item_id", "number"]], on=["condition_id", "number"])
    fresh = without(fresh, popular, ["list", "item_id"])
    fresh = best(fresh, num_fresh, "list", [-fresh["number"].to_numpy()])
    counts = popular.groupby("list", sort=False).size().rename("num_popular").reset_index()
    behind = fresh[["list"]].merge(counts, on="list", how="left")["num_popular"].fillna(0).to_numpy()
    fresh = fresh.assign(rank=fresh["rank"].to_numpy() + behind.astype(np.int64), score=0.0)
    return pd.concat([popular, fresh[["list", "item_id", "rank", "score"]]], ignore_index=True)
