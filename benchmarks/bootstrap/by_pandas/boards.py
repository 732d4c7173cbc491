"""The board generator: a user's active boards → walks from their newest items over the graph of boards and items."""

from __future__ import annotations

import functools

import numpy as np

from benchmarks.bootstrap.by_pandas.frames import Frame, as_of, best, newest, seconds, without
from benchmarks.bootstrap.by_pandas.world import World
from clrflow.bootstrap.generators.board import BOARDS_AN_ITEM, ITEMS_A_BOARD, UNIT


def conditions(world: World) -> Frame:
    """query, condition_id, state, score."""
    asked = world.queries[["user_id", "requested_at"]].assign(query=np.arange(len(world.queries)))
    joined = asked.merge(world.entries[["board_id", "user_id", "entry", "added_at", "until"]], on="user_id")
    active = joined[((joined["added_at"] < joined["requested_at"]) & (joined["requested_at"] <= joined["until"])).to_numpy()]
    order = [-active["added_at"].to_numpy(), active["board_id"].to_numpy()]
    chosen = best(active, world.settings.board.max_conditions, "query", order)
    days = (seconds(chosen["requested_at"].to_numpy()) - seconds(chosen["added_at"].to_numpy())) / 86_400
    chosen = chosen.assign(score=1 / (1 + days)).rename(columns={"board_id": "condition_id", "entry": "state"})
    return chosen[["query", "condition_id", "state", "score"]]


def sizes_at(world: World, asked: Frame) -> Frame:
    """Entries of boards (condition_id) at a query, where there are any: query, condition_id, state."""
    times = world.queries["requested_at"].to_numpy()[asked["query"]]
    joined = asked.assign(requested_at=times).merge(world.entries, left_on="condition_id", right_on="board_id")
    found = joined[((joined["added_at"] < joined["requested_at"]) & (joined["requested_at"] <= joined["until"])).to_numpy()]
    return found[["query", "condition_id"]].assign(state=found["entry"].to_numpy())


def graph(world: World) -> Frame:
    """Entries that may be learnt from, numbered by age in their board and in their item: board_id, item_id, period, in_board, in_item."""
    edges = world.entries[world.entries["learnt"].to_numpy()][["board_id", "item_id", "period", "added_at"]]
    edges["in_board"] = edges.groupby("board_id", sort=False).cumcount() + 1
    edges = edges.iloc[np.lexsort([edges[name].to_numpy() for name in ("board_id", "added_at", "item_id")])]
    edges["in_item"] = edges.groupby("item_id", sort=False).cumcount() + 1
    return edges.drop(columns="added_at")


def candidates(world: World, wanted: Frame, edges: Frame) -> Frame:
    """list, item_id, rank, score."""
    own = world.entries[["item_id", "entry", "board_id"]].rename(columns={"board_id": "condition_id"})
    asked = wanted[["list", "condition_id", "state", "period"]]
    starts = newest(asked, "state", world.settings.board.recent_items, "entry").merge(own, on=["condition_id", "entry"])
    origins = starts[["item_id", "period"]].drop_duplicates(ignore_index=True)
    origins["origin"] = np.arange(len(origins))
    starts = starts.merge(origins, on=["item_id", "period"])[["list", "origin"]]
    visits = starts.merge(_steps(origins, edges), on="origin")
    visits = visits.groupby(["list", "other_id"], sort=False)["damped"].sum().reset_index().rename(columns={"other_id": "item_id"})
    mine = asked.merge(own, on="condition_id")
    mine = mine[(mine["entry"] <= mine["state"]).to_numpy()]
    visits = without(visits, mine, ["list", "item_id"])
    visits = visits.merge(starts.groupby("list", sort=False).size().rename("num_starts").reset_index(), on="list")
    visits["score"] = visits["damped"] / (visits["num_starts"] * float(UNIT))
    order = [-visits["score"].to_numpy(), visits["item_id"].to_numpy()]
    return best(visits, world.settings.board.num_candidates, "list", order)[["list", "item_id", "rank", "score"]]


def _steps(origins: Frame, edges: Frame) -> Frame:
    """Walks of two steps: origin, other_id and damped, the probability in parts of UNIT over the root of the other item's boards."""
    periods = origins["period"].unique()
    item_degrees = as_of(edges[["item_id", "period"]], periods, "item_id")
    by_item = newest(origins.merge(item_degrees, on=["period", "item_id"]), "total", BOARDS_AN_ITEM, "in_item")
    first = by_item.merge(edges[["item_id", "board_id", "in_item"]], on=["item_id", "in_item"])
    first["fan"] = first["total"].clip(upper=BOARDS_AN_ITEM)
    stops = first[["board_id", "period"]].drop_duplicates(ignore_index=True)
    stops["stop"] = np.arange(len(stops))
    degrees = as_of(edges[["board_id", "period"]], periods, "board_id")
    by_board = newest(stops.merge(degrees, on=["period", "board_id"]), "total", ITEMS_A_BOARD, "in_board")
    second = by_board.merge(edges[["board_id", "in_board", "item_id"]], on=["board_id", "in_board"])
    second = second[["stop", "item_id"]].assign(board_fan=second["total"].clip(upper=ITEMS_A_BOARD)).rename(columns={"item_id": "other_id"})
    first = first.merge(stops, on=["board_id", "period"])[["origin", "stop", "fan"]]
    paths = first.merge(second, on="stop")
    paths["share"] = np.floor(float(UNIT) / (paths["fan"] * paths["board_fan"]))
    ends = paths.groupby(["origin", "other_id"], sort=False)["share"].sum().rename("probability").reset_index()
    ends["period"] = origins["period"].to_numpy()[ends["origin"]]
    ends = ends.merge(item_degrees.rename(columns={"item_id": "other_id"}), on=["period", "other_id"])
    return ends[["origin", "other_id"]].assign(damped=np.floor(ends["probability"] / np.sqrt(ends["total"])))


def with_graph(world: World) -> functools.partial[Frame]:
    """`candidates` with the graph that is numbered once."""
    return functools.partial(candidates, edges=graph(world))
