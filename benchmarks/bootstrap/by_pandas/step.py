"""The whole step in pandas."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks.bootstrap import nested
from benchmarks.bootstrap.by_pandas import boards, interests, items
from benchmarks.bootstrap.by_pandas.attribution import ROLES, SOURCES, Served, attribute, serve
from benchmarks.bootstrap.by_pandas.frames import Frame, categories, newest
from benchmarks.bootstrap.by_pandas.requests import cut, read_events, read_items, sampled
from benchmarks.bootstrap.by_pandas.world import World, build
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.contracts import CONDITION_TYPES, TRAIN
from clrflow.data.settings import DataSettings
from clrflow.manifest import Output

LISTS_OF_A_GENERATOR = 10**9
"""Lists are numbered from a multiple of this on."""
ALL = LISTS_OF_A_GENERATOR
"""All lists of a generator at once."""


def bootstrap(
    sources: Mapping[str, str], settings: BootstrapSettings, data: DataSettings, folder: str, lists_at_once: int = ALL
) -> dict[str, Output]:
    """Read the clean tables at `sources`, write the step's four below `folder`; `lists_at_once` trades time for memory."""
    period_s = max(1, round(settings.granularity_days * 86_400))
    log = cut(read_events(sources["events"]), read_items(sources["items"]), settings, data, period_s)
    world = build(log, sources, settings, period_s)
    held_out = sampled(log.requests, settings.max_candidate_requests)
    known, served = _ask(world, held_out, lists_at_once)
    known = known.iloc[np.lexsort([known["condition_id"], -known["score"], known["kind"], known["query"]])].reset_index(drop=True)
    known["index"] = known.groupby("query", sort=False).cumcount()
    hits = pd.concat([one.hits for one in served], ignore_index=True)
    conditions, targets = attribute(world, known, hits)
    flat = _flat(world, known, served, conditions, targets)
    del known, served, hits, conditions, targets
    return nested.write(flat, folder, settings.request.max_history)


def _ask(world: World, held_out: np.ndarray, lists_at_once: int) -> tuple[Frame, list[Served]]:
    """Known conditions of all queries, and what the generators served."""
    settings = world.settings
    known: list[Frame] = []
    served: list[Served] = []
    for kind, name in enumerate(CONDITION_TYPES):
        if kind == 0 or not getattr(settings, name).enabled:
            continue
        if name == "interest":
            candidates: Callable[[World, Frame], Frame] = interests.candidates
            conditions = interests.conditions(world)
        elif name == "item":
            conditions, candidates = items.conditions(world), items.with_graph(world)
        else:
            conditions, candidates = boards.conditions(world), boards.with_graph(world)
        known.append(conditions.assign(kind=kind))
        first_list = LISTS_OF_A_GENERATOR * len(served)
        served.append(serve(world, kind, conditions, candidates, held_out, first_list, lists_at_once))
    return pd.concat(known, ignore_index=True), served


def _flat(world: World, known: Frame, served: list[Served], conditions: Frame, targets: Frame) -> nested.Flat:
    engaged, requests = world.cut.engagements, world.cut.requests
    conditions = conditions.iloc[np.lexsort([conditions["index"], conditions["query"]])].reset_index(drop=True)
    engaged_targets = engaged[["item_id", "action", "timestamp", "position"]].iloc[targets["row"]].reset_index(drop=True)
    targets = pd.concat([targets.reset_index(drop=True), engaged_targets], axis=1)
    targets = targets.iloc[np.lexsort([targets["condition"], targets["position"], targets["query"]])]
    targets["source"] = categories(targets["source"], SOURCES)
    asked = pd.concat([one.asked for one in served], ignore_index=True)
    asked = asked.iloc[np.lexsort([asked["condition_id"], -asked["score"], asked["kind"], asked["query"]])]
    names = categories(asked["kind"], CONDITION_TYPES)
    asked = asked.assign(request_id=requests["request_id"].to_numpy()[asked["query"]], generator=names, condition_type=names)
    lists = pd.concat([one.lists for one in served], ignore_index=True)
    lists = lists.iloc[np.lexsort([lists["rank"], lists["list"]])]
    return nested.Flat(
        requests=_arrow(requests[["request_id", "user_id", "requested_at", "split", "first_row", "first_seq"]]),
        users=_arrow(world.queries.iloc[world.num_requests :][["user_id", "first_row", "first_seq"]]),
        events=_arrow(engaged[["item_id", "action", "timestamp"]]),
        conditions=_arrow(
            pd.DataFrame(
                {
                    "query": conditions["query"], "type": categories(conditions["kind"], CONDITION_TYPES),
                    "id": conditions["condition_id"], "score": conditions["score"],
                    "role": categories(conditions["role"], ROLES),
                }
            )
        ),
        shown=_arrow(_shown(world, conditions)),
        targets=_arrow(targets.drop(columns="row")),
        impressions=_arrow(world.cut.impressions[["query", "item_id"]]),
        asked=_arrow(asked[["request_id", "generator", "condition_type", "condition_id", "list"]]),
        lists=_arrow(lists[["list", "item_id", "score"]]),
        statistics=_statistics(world),
    )  # fmt: skip


def _shown(world: World, conditions: Frame) -> Frame:
    """What tokens show: an item itself, a board's newest items with the newest last."""
    places = conditions[["kind", "condition_id", "state"]].assign(place=np.arange(len(conditions)))
    own = places[(places["kind"] == CONDITION_TYPES.index("item")).to_numpy()]
    on_boards = places[(places["kind"] == CONDITION_TYPES.index("board")).to_numpy()]
    entries = newest(on_boards, "state", world.settings.board.recent_items, "entry")
    entries = entries.merge(
        world.entries[["board_id", "entry", "item_id"]], left_on=["condition_id", "entry"], right_on=["board_id", "entry"]
    )
    shown = pd.concat([own.assign(item_id=own["condition_id"], entry=0), entries], ignore_index=True)
    return shown.iloc[np.lexsort([shown["entry"], shown["place"]])][["place", "item_id"]]


def _statistics(world: World) -> pa.Table:
    train = world.cut.engagements[(world.cut.engagements["split"] == TRAIN).to_numpy()]
    counted = train.groupby("item_id")["timestamp"].agg(["size", "min"])
    joined = world.items[["item_id"]].sort_values("item_id").merge(counted, left_on="item_id", right_index=True, how="left")
    never = joined["size"].isna().to_numpy()
    first = pa.array(joined["min"].fillna(0).to_numpy().astype(np.int64), mask=never)
    counts = joined["size"].fillna(0).to_numpy().astype(np.int64)
    return pa.table({"item_id": joined["item_id"].to_numpy(), "num_engagements": counts, "first_engaged_at": first})


def _arrow(rows: Frame) -> pa.Table:
    return pa.Table.from_pandas(rows, preserve_index=False)
