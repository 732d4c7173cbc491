"""Days that an earlier run built from the same inputs are taken over instead of being built again.

A day's requests hang on that day's events, on the events of the lookback before it, on what items, boards and follows there were, and on the
settings; a hash of all that is the day's key. A finished day has a marker with its figures, named by day and key; the runs of a workspace look
through each other's markers. So a daily run builds the newest day, and the two that leave test and validation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow.compute as pc

from clrflow import storage
from clrflow.bootstrap.engine import Engine
from clrflow.bootstrap.expressions import Table, day_of
from clrflow.bootstrap.figures import DayFigures
from clrflow.bootstrap.nesting import day_folder
from clrflow.bootstrap.requests import Cuts
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.contracts import TRAIN
from clrflow.data.settings import DataSettings
from clrflow.data.tables import read_table

VERSION = 1
"""Raised when equal inputs would no longer give an equal day."""
MARKERS = "days"
"""Folder of the markers, beside those of the tables."""
TABLES = ("requests", "candidates")
"""Tables that lie in a folder a day."""
NOT_OF_A_DAY = {"engine", "memory_limit", "spark"}
"""Settings that change how a day is built and not what it holds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Day:
    """A day of the dataset. Days are counted since 1970."""

    number: int
    split: str
    key: str
    """"" where the day can't be told apart from others and is always built."""

    @property
    def name(self) -> str:
        return str(np.datetime64(self.number, "D"))


def days_of(
    engine: Engine,
    *,
    days_uri: str,
    events: Table,
    items: Table,
    requests: Table,
    cuts: Cuts,
    settings: BootstrapSettings,
    data: DataSettings,
) -> list[Day]:
    """The days that have requests and, with a lookback, the whole of it; each with its key.

    `days_uri` is validate_data's output `days`, "" where there is none.
    """
    splits = engine.arrow(requests.select("day", "split").distinct().order_by("day"))
    found = list(zip(splits.column("day").to_pylist(), splits.column("split").to_pylist(), strict=True))
    numbers = sorted({day for day, _ in found})
    if settings.lookback_days is not None:
        first = engine.value(day_of(events.timestamp.min()))
        numbers = [day for day in numbers if day - settings.lookback_days >= first]
    # Where a split, or a request, may hang on later days, a day isn't the same when more of them have come.
    apart = (
        days_uri
        and cuts.validation_from is not None
        and settings.request.session_gap_minutes is not None
        and len(found) == len({day for day, _ in found})
    )
    if not apart:
        return [Day(number=day, split="", key="") for day in numbers]
    prints = _Fingerprints(days_uri)
    horizon = _horizon(engine, events, items)
    of_split = dict(found)
    shared = [VERSION, settings.model_dump(mode="json", exclude=NOT_OF_A_DAY), [action.model_dump(mode="json") for action in data.actions]]
    days = []
    for day in numbers:
        # What is held out is sampled over all of its days, and asks what was learnt before the validation cut.
        last = day if of_split[day] == TRAIN else numbers[-1]
        first = None if settings.lookback_days is None else day - settings.lookback_days
        parts = [
            prints.of("events", first, last),
            prints.of("items", None, max(last, horizon(last))),
            prints.of("boards", None, last),
            prints.of("user_interests", None, last),
        ]
        held_out = "" if of_split[day] == TRAIN else str(cuts)
        days.append(Day(number=day, split=of_split[day], key=storage.fingerprint_of(shared, of_split[day], held_out, parts)))
    return days


class _Fingerprints:
    """validate_data's fingerprints of the days of the clean tables."""

    def __init__(self, uri: str):
        table = read_table(uri)
        self._rows: dict[str, list[tuple[int, str]]] = {}
        numbers = pc.cast(table.column("day"), "int32").to_pylist()
        prints = table.column("fingerprint").to_pylist()
        for name, number, text in sorted(zip(table.column("table").to_pylist(), numbers, prints, strict=True)):
            self._rows.setdefault(name, []).append((number, text))

    def of(self, table: str, first: int | None, last: int) -> list[tuple[int, str]]:
        return [(day, text) for day, text in self._rows.get(table, []) if day <= last and (first is None or day >= first)]


def _horizon(engine: Engine, events: Table, items: Table) -> _Horizon:
    joined = events.select("item_id", happened=day_of(events.timestamp)).join(
        items.select("item_id", born=day_of(items.created_at)), "item_id"
    )
    late = joined.filter(joined.born > joined.happened)
    rows = engine.arrow(late.group_by("happened").aggregate(born=late.born.max()).order_by("happened"))
    return _Horizon(rows.column("happened").to_numpy(), np.maximum.accumulate(rows.column("born").to_numpy()))


@dataclasses.dataclass(frozen=True)
class _Horizon:
    """The newest creation among the items that were engaged up to a day: some are said to be younger than their first event."""

    days: np.ndarray
    born: np.ndarray

    def __call__(self, day: int) -> int:
        place = int(np.searchsorted(self.days, day, side="right"))
        return int(self.born[place - 1]) if place else day


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """Days that are there, by number."""

    figures: Mapping[int, DayFigures]
    taken_over: tuple[int, ...]
    """Those that an earlier run built."""


def take_over(days: Iterable[Day], tables: str, earlier: Iterable[str]) -> Built:
    """Link into the folder `tables` what the folders `earlier` hold of the days, under the same keys; what else lies there is removed."""
    wanted = {f"{day.name}-{day.key}.json": day for day in days if day.key}
    found: dict[int, DayFigures] = {}
    taken: list[int] = []
    for folder in [tables, *earlier]:
        markers = storage.join(folder, MARKERS)
        if not storage.exists(markers):
            continue
        for marker in storage.list_files(markers, ".json"):
            day = wanted.get(storage.name_of(marker))
            if day is None or day.number in found:
                continue
            if folder != tables:
                for table in TABLES:
                    source, target = (
                        day_folder(storage.join(folder, table), day.number),
                        day_folder(storage.join(tables, table), day.number),
                    )
                    storage.remove(target)
                    storage.link_files(source, target)
                storage.write_bytes(storage.join(tables, MARKERS, storage.name_of(marker)), storage.read_bytes(marker))
                taken.append(day.number)
            found[day.number] = DayFigures.of(storage.read_json(marker)["figures"])
    for table in TABLES:
        for file in _day_folders(storage.join(tables, table)):
            if file not in {day_folder(storage.join(tables, table), number) for number in found}:
                storage.remove(file)
    return Built(figures=found, taken_over=tuple(sorted(taken)))


def _day_folders(table: str) -> set[str]:
    if not storage.exists(table):
        return set()
    return {file.rsplit("/", 1)[0] for file in storage.list_files(table, ".parquet")}


def mark(day: Day, tables: str, figures: DayFigures) -> None:
    """Say that a day's files are all there."""
    if day.key:
        storage.write_json(
            storage.join(tables, MARKERS, f"{day.name}-{day.key}.json"), {"day": day.name, "key": day.key, "figures": figures.json()}
        )
