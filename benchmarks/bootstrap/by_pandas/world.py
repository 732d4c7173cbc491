"""What the generators look at: queries, recent items, counts of closed periods, interests of items, boards by age."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd

from benchmarks.bootstrap.by_pandas.frames import Frame, as_of, period_of, read
from benchmarks.bootstrap.by_pandas.requests import Cut, read_items
from clrflow.bootstrap.generators.interest import RECENT_ITEMS
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.contracts import TRAIN
from clrflow.data.tables import read_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """Frames by user order or by key; `period` counts periods since 1970."""

    settings: BootstrapSettings
    period_s: int
    cut: Cut
    queries: Frame
    """user_id, requested_at, period, first_row, first_seq; the row's number is the query: requests, then users at the end."""
    num_requests: int
    recent: Frame
    """query, item_id, age."""
    learnt: Frame
    """Train engagements: user_id, item_id, seq, period."""
    popularity: Frame
    """period, item_id, total."""
    items: Frame
    """item_id, created_at."""
    items_uri: str
    interests: Frame
    """item_id, interest_id, place, num_interests."""
    followed: Frame
    """user_id, interest_id, since (period)."""
    entries: Frame
    """board_id, user_id, item_id, added_at, entry, period, learnt, until (time of the next entry)."""


def build(cut: Cut, sources: Mapping[str, str], settings: BootstrapSettings, period_s: int) -> World:
    engaged = cut.engagements
    queries = _queries(cut, period_s)
    learnt = engaged[(engaged["split"] == TRAIN).to_numpy()][["user_id", "item_id", "seq", "period"]]
    followed = read(sources["user_interests"], ["user_id", "interest_id", "followed_at"])
    followed = followed.groupby(["user_id", "interest_id"], sort=False)["followed_at"].min().reset_index()
    followed["since"] = period_of(followed.pop("followed_at").to_numpy(), period_s)
    return World(
        settings=settings,
        period_s=period_s,
        cut=cut,
        queries=queries,
        num_requests=len(cut.requests),
        recent=_recent(queries, engaged, max(RECENT_ITEMS, settings.item.recent_items)),
        learnt=learnt,
        popularity=as_of(learnt[["item_id", "period"]], queries["period"].to_numpy(), "item_id"),
        items=read_items(sources["items"]),
        items_uri=sources["items"],
        interests=_interests(sources["items"]),
        followed=followed,
        entries=_entries(sources["boards"], cut, period_s),
    )


def _queries(cut: Cut, period_s: int) -> Frame:
    columns = ["user_id", "requested_at", "period", "first_row", "first_seq"]
    sizes = cut.engagements.groupby("user_id", sort=True).size()
    newest = int(cut.engagements["timestamp"].max()) + 1
    at_the_end = pd.DataFrame({"user_id": sizes.index, "first_seq": sizes.to_numpy(), "first_row": sizes.cumsum().to_numpy()})
    at_the_end = at_the_end.assign(requested_at=newest, period=int(period_of(np.array(newest), period_s)) + 1)
    return pd.concat([cut.requests[columns], at_the_end[columns]], ignore_index=True)


def _recent(queries: Frame, engaged: Frame, length: int) -> Frame:
    counts = queries["first_seq"].clip(upper=length).to_numpy()
    age = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    rows = np.repeat(queries["first_row"].to_numpy(), counts) - age
    return pd.DataFrame({"query": np.repeat(np.arange(len(queries)), counts), "item_id": engaged["item_id"].to_numpy()[rows], "age": age})


def _interests(uri: str) -> Frame:
    table = read_table(uri, ["item_id", "interests"])
    lists = table.column("interests").combine_chunks()
    counts = np.nan_to_num(lists.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
    rows = pd.DataFrame({"item_id": np.repeat(table.column("item_id").to_numpy(), counts), "interest_id": lists.flatten().to_numpy()})
    rows = rows.drop_duplicates().sort_values(["item_id", "interest_id"], ignore_index=True)
    grouped = rows.groupby("item_id", sort=False)
    return rows.assign(place=grouped.cumcount(), num_interests=grouped["interest_id"].transform("size"))


def _entries(uri: str, cut: Cut, period_s: int) -> Frame:
    rows = read(uri, ["board_id", "user_id", "item_id", "added_at"])
    first = rows.groupby(["board_id", "user_id", "item_id"], sort=False)["added_at"].min().reset_index()
    if cut.cuts.validation_from is not None:
        first["learnt"] = first["added_at"] < cut.cuts.validation_from
    else:
        held_out = cut.requests[(cut.requests["split"] != TRAIN).to_numpy()]
        until = held_out.groupby("user_id")["requested_at"].min().rename("train_until")
        train_until = first[["user_id"]].merge(until, on="user_id", how="left")["train_until"].to_numpy()
        first["learnt"] = np.isnan(train_until) | (first["added_at"].to_numpy() < train_until)
    order = np.lexsort([first[name].to_numpy() for name in ("item_id", "added_at", "board_id")])
    first = first.iloc[order].reset_index(drop=True)
    first["entry"] = first.groupby("board_id", sort=False).cumcount() + 1
    first["period"] = period_of(first["added_at"].to_numpy(), period_s)
    board, added = first["board_id"].to_numpy(), first["added_at"].to_numpy()
    until_next = np.full(len(first), np.iinfo(np.int64).max)
    until_next[:-1] = np.where(board[1:] == board[:-1], added[1:], until_next[:-1])
    return first.assign(until=until_next)
