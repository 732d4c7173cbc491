"""A small world of tables for the bootstrap tests: written as cleaned Parquet, run through the whole step, read back as Python rows."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from clrflow.bootstrap.duckdb_engine import DuckdbEngine
from clrflow.bootstrap.engine import Engine
from clrflow.bootstrap.quality import Quality
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.bootstrap.step import bootstrap
from clrflow.contracts import TIME
from clrflow.data.settings import Action, DataSettings
from clrflow.data.tables import read_table, write_table
from clrflow.manifest import Output

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

EVENTS = pa.schema(
    [
        ("user_id", pa.int64()), ("item_id", pa.int64()), ("timestamp", TIME), ("action", pa.string()), ("board_id", pa.int64()),
        ("generator", pa.string()), ("condition_type", pa.string()), ("condition_id", pa.int64()), ("position", pa.int32()),
        ("event_order", pa.int64()),
    ]
)  # fmt: skip
ITEMS = pa.schema(
    [
        ("item_id", pa.int64()), ("created_at", TIME), ("interests", pa.list_(pa.int64())), ("content_embedding", pa.list_(pa.float32(), 2)),
        ("title", pa.string()),
    ]
)  # fmt: skip
BOARDS = pa.schema([("board_id", pa.int64()), ("user_id", pa.int64()), ("item_id", pa.int64()), ("added_at", TIME), ("name", pa.string())])
FOLLOWED = pa.schema([("user_id", pa.int64()), ("interest_id", pa.int64()), ("followed_at", TIME)])
INTERESTS = pa.schema([("interest_id", pa.int64()), ("name", pa.string())])
DAYS = pa.schema([("table", pa.string()), ("day", pa.date32()), ("num_rows", pa.int64()), ("fingerprint", pa.string())])
TIMES = {"events": "timestamp", "items": "created_at", "boards": "added_at", "user_interests": "followed_at"}


def at(day: float, second: float = 0) -> datetime.datetime:
    """A time so many days and seconds after the start of the log."""
    return START + datetime.timedelta(days=day, seconds=second)


@dataclasses.dataclass
class World:
    """Tables under construction. Times are days since the start; ties are broken in the order in which events are added."""

    folder: Path
    events: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    items: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    boards: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    followed: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    shuffled: bool = False
    """Events are written in no order; what they say is the same."""
    settings: BootstrapSettings = BootstrapSettings()
    data: DataSettings = DataSettings(
        actions=(Action(name="click", weight=1.0), Action(name="save", weight=2.0), Action(name="impression", positive=False))
    )

    def item(self, item_id: int, *interests: int, day: float = -10, vector: tuple[float, float] = (1.0, 0.0)) -> None:
        self.items[item_id] = {"item_id": item_id, "created_at": at(day), "interests": list(interests), "content_embedding": vector}

    def event(
        self, user: int, item: int, day: float, second: float = 0, *, action: str = "click", order: int | None = None, **more: Any
    ) -> None:
        if item not in self.items:
            self.item(item)
        place = len(self.events) if order is None else order
        row = {"user_id": user, "item_id": item, "timestamp": at(day, second), "action": action, "event_order": place}
        self.events.append({**row, **more})

    def add_to_board(self, board: int, user: int, item: int, day: float) -> None:
        if item not in self.items:
            self.item(item)
        self.boards.append({"board_id": board, "user_id": user, "item_id": item, "added_at": at(day)})

    def follow(self, user: int, interest: int, day: float) -> None:
        self.followed.append({"user_id": user, "interest_id": interest, "followed_at": at(day)})

    def sources(self) -> dict[str, str]:
        """Write the cleaned tables; their URIs by name."""
        interests = sorted({interest for item in self.items.values() for interest in item["interests"]})
        events = sorted(self.events, key=lambda row: (row["user_id"], row["timestamp"], row["event_order"]))
        if self.shuffled:
            random.Random(1).shuffle(events)
        rows: dict[str, tuple[list[dict[str, Any]], pa.Schema]] = {
            "events": (events, EVENTS),
            "items": ([self.items[key] for key in sorted(self.items)], ITEMS),
            "boards": (self.boards, BOARDS),
            "user_interests": (self.followed, FOLLOWED),
            "interests": ([{"interest_id": one, "name": f"interest {one}"} for one in interests], INTERESTS),
        }
        uris = {}
        for name, (listed, schema) in rows.items():
            uris[name] = str(self.folder / "in" / name)
            write_table(uris[name], pa.Table.from_pylist(listed, schema=schema), schema)
        uris["days"] = str(self.folder / "in" / "days")
        days = [day for name, time in TIMES.items() for day in _days(name, rows[name][0], time)]
        write_table(uris["days"], pa.Table.from_pylist(days, schema=DAYS), DAYS)
        return uris

    def run(self, *, engine: Engine | None = None, earlier: tuple[str, ...] = (), **changes: Any) -> Outcome:
        """The whole step; `changes` are settings, a part as a dictionary of its fields, `earlier` are folders of earlier results."""
        settings = BootstrapSettings.model_validate({**self.settings.model_dump(), **changes})
        sources = self.sources()
        with contextlib.ExitStack() as stack:
            made = engine or stack.enter_context(DuckdbEngine(memory_limit="500MB", scratch=self.folder / "scratch"))
            outputs, quality = bootstrap(made, sources, settings, self.data, str(self.folder / "out"), earlier)
        return Outcome(outputs, quality)


def _days(table: str, rows: list[dict[str, Any]], time: str) -> list[dict[str, Any]]:
    """A hash of each day's rows, as validate_data writes them."""
    by_day: dict[datetime.date, list[str]] = {}
    for row in rows:
        by_day.setdefault(row[time].date(), []).append(repr(sorted(row.items())))
    return [
        {"table": table, "day": day, "num_rows": len(listed), "fingerprint": hashlib.blake2b("".join(sorted(listed)).encode()).hexdigest()}
        for day, listed in sorted(by_day.items())
    ]


class Outcome:
    """What the step wrote, as rows."""

    def __init__(self, outputs: dict[str, Output], quality: Quality):
        self.quality = quality
        self.fingerprints = {name: output.fingerprint for name, output in outputs.items()}
        self.tables: dict[str, pa.Table] = {name: read_table(output.uri) for name, output in outputs.items()}

    def rows(self, name: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.tables[name].to_pylist()
        return listed

    def requests(self, user: int | None = None) -> list[dict[str, Any]]:
        return [row for row in self.rows("requests") if user is None or row["user_id"] == user]

    def candidates(self, request_id: int, kind: str, condition: int) -> list[int]:
        for row in self.rows("candidates"):
            if (row["request_id"], row["condition_type"], row["condition_id"]) == (request_id, kind, condition):
                items: list[int] = row["items"]
                return items
        return []


def engaged(request: dict[str, Any]) -> list[int]:
    """The items of a request, in order."""
    return [target["item_id"] for target in request["targets"] if target["condition"] == -1]


def conditioned(request: dict[str, Any], item: int) -> list[tuple[str, str, int, float]]:
    """(source, condition type, condition id, weight) of an item's conditioned targets."""
    found = []
    for target in request["targets"]:
        if target["item_id"] == item and target["condition"] >= 0:
            condition = request["conditions"][target["condition"]]
            found.append((target["source"], condition["type"], condition["id"], round(target["weight"], 6)))
    return found


def known(request: dict[str, Any], kind: str) -> list[int]:
    """Ids of the known conditions of a type, best first."""
    return [one["id"] for one in request["conditions"] if one["type"] == kind and one["role"] == "known"]
