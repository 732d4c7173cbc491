"""The item generator: medoids of recent items → neighbours in the graph of what users engaged within a few steps."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd

from benchmarks.bootstrap.by_pandas.frames import Frame, best
from benchmarks.bootstrap.by_pandas.world import World
from benchmarks.bootstrap.medoids import content_vectors, medoids
from clrflow.bootstrap.generators.item import DAMPING, WINDOW


def conditions(world: World) -> Frame:
    """query, condition_id, state, score."""
    recent = world.recent[(world.recent["age"] <= world.settings.item.recent_items).to_numpy()]
    distinct = recent.groupby(["query", "item_id"], sort=False)["age"].min().reset_index()
    distinct = distinct.iloc[np.lexsort((distinct["age"].to_numpy(), distinct["query"].to_numpy()))]
    ids, vectors = content_vectors(world.items_uri, distinct["item_id"].to_numpy())
    query, item, share = medoids(distinct["query"].to_numpy(), distinct["item_id"].to_numpy(), ids, vectors, world.settings.item)
    return pd.DataFrame({"query": query, "condition_id": item, "state": 0, "score": share})


def candidates(world: World, wanted: Frame, edges: Frame) -> Frame:
    """list, item_id, rank, score."""
    own = world.popularity.rename(columns={"item_id": "condition_id", "total": "own_total"})
    lists = wanted[["list", "condition_id", "period"]].merge(own, on=["condition_id", "period"])
    pairs = lists[["list", "condition_id", "period"]].merge(edges, left_on="condition_id", right_on="item_id")
    pairs = pairs[(pairs["since"] < pairs["period"]).to_numpy()]
    counts = pairs.groupby(["list", "other_id"], sort=False)["n"].sum().reset_index()
    counts = counts.merge(lists[["list", "period", "own_total"]], on="list")
    counts = counts.merge(world.popularity.rename(columns={"item_id": "other_id", "total": "other_total"}), on=["period", "other_id"])
    counts["score"] = counts["n"] / np.sqrt((counts["own_total"] + DAMPING) * (counts["other_total"] + DAMPING))
    order = [-counts["score"].to_numpy(), counts["other_id"].to_numpy()]
    found = best(counts, world.settings.item.num_candidates, "list", order)
    return found.rename(columns={"other_id": "item_id"})[["list", "item_id", "rank", "score"]]


def co_engagements(world: World) -> Frame:
    """Pairs of items in both directions: item_id, other_id, since (the later engagement's period), n."""
    user, item, seq, period = (world.learnt[name].to_numpy() for name in ("user_id", "item_id", "seq", "period"))
    parts = []
    for step in range(1, WINDOW + 1):
        near = (user[step:] == user[:-step]) & (seq[step:] == seq[:-step] + step) & (item[step:] != item[:-step])
        one, other, since = item[:-step][near], item[step:][near], period[step:][near]
        parts.append(pd.DataFrame({"item_id": one, "other_id": other, "since": since}))
        parts.append(pd.DataFrame({"item_id": other, "other_id": one, "since": since}))
    pairs = pd.concat(parts, ignore_index=True)
    return pairs.groupby(["item_id", "other_id", "since"], sort=False).size().rename("n").astype(np.float64).reset_index()


def with_graph(world: World) -> functools.partial[Frame]:
    """`candidates` with the graph that is counted once."""
    return functools.partial(candidates, edges=co_engagements(world))
