"""Verbs that pandas lacks: typed reading, the best rows of a group, ranges of numbered rows, running totals as of a period."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from clrflow.data.tables import read_table

Frame = pd.DataFrame
MICROSECONDS = 1_000_000


def read(uri: str, columns: list[str]) -> Frame:
    """Columns of a table: times as int64 microseconds, texts as categories."""
    return frame(read_table(uri, columns))


def frame(table: pa.Table) -> Frame:
    columns = {}
    for field in table.schema:
        column = table.column(field.name)
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.int64())
        elif pa.types.is_string(field.type):
            column = column.dictionary_encode()
        columns[field.name] = column
    found: Frame = pa.table(columns).to_pandas(split_blocks=True, self_destruct=True)
    return found


def categories(codes: Any, names: Sequence[str]) -> pd.Categorical[str]:
    """Places in `names` as texts."""
    return pd.Categorical.from_codes(np.asarray(codes, dtype=np.int64), pd.Index(list(names)))


def changes(*columns: np.ndarray) -> np.ndarray:
    """True where any of the columns differs from the row before, and at the first row."""
    out = np.ones(len(columns[0]), dtype=bool)
    out[1:] = False
    for column in columns:
        out[1:] |= column[1:] != column[:-1]
    return out


def best(rows: Frame, limit: int, group: str, order: list[np.ndarray]) -> Frame:
    """The first `limit` rows of each group with their 1-based `rank`; `order` holds sort keys, the first one decides first."""
    rows = rows.iloc[np.lexsort((*reversed(order), rows[group].to_numpy()))]
    rank = rows.groupby(group, sort=False).cumcount() + 1
    return rows.assign(rank=rank)[(rank <= limit).to_numpy()]


def newest(rows: Frame, last: str, limit: int, number: str) -> Frame:
    """A row for each of the newest `limit` numbers up to rows[last], counted from 1."""
    counts = rows[last].clip(upper=limit).to_numpy()
    back = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    out = rows.iloc[np.repeat(np.arange(len(rows)), counts)].reset_index(drop=True)
    out[number] = out[last].to_numpy() - back
    return out


def without(rows: Frame, others: Frame, keys: list[str]) -> Frame:
    """Rows whose keys aren't among the others'."""
    marked = rows.merge(others[keys].drop_duplicates(), on=keys, how="left", indicator="_side")
    return marked[(marked["_side"] == "left_only").to_numpy()].drop(columns="_side")


def seconds(times: Any) -> Any:
    """Whole seconds of microseconds, rounded down."""
    return times // MICROSECONDS


def period_of(times: np.ndarray, period_s: int) -> np.ndarray:
    return seconds(times) // period_s


def as_of(events: Frame, periods: np.ndarray, key: str) -> Frame:
    """How many rows of `events` (key, period) each key had before each of the periods, where any: period, key, total."""
    steps = events.groupby([key, "period"], sort=True).size().rename("n").reset_index()
    steps["total"] = steps.groupby(key)["n"].cumsum()
    keys, since = steps[key].to_numpy(), steps["period"].to_numpy()
    until = np.full(len(steps), np.iinfo(np.int64).max)
    until[:-1] = np.where(keys[1:] == keys[:-1], since[1:], until[:-1])
    wanted = np.unique(periods)
    first = np.searchsorted(wanted, since, side="right")
    counts = np.searchsorted(wanted, until, side="right") - first
    places = np.repeat(first, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return pd.DataFrame({"period": wanted[places], key: np.repeat(keys, counts), "total": np.repeat(steps["total"].to_numpy(), counts)})
