"""Tiny tables whose numbers fit in the head, and short ways to write them and to run the step over them."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clrflow.config import PipelineConfig
from clrflow.contracts import TIME
from clrflow.data.clean import write_clean
from clrflow.data.profile import profile_of
from clrflow.data.settings import DataSettings
from clrflow.data.tables import read_table
from clrflow.data.validate import checked, facts_of
from clrflow.manifest import Output
from clrflow.steps import Outcome, Run, execute

DAY = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)


def at(minute: float) -> datetime.datetime:
    """So many minutes after the first of January 2025, UTC."""
    return DAY + datetime.timedelta(minutes=minute)


def events(*rows: tuple[Any, Any, Any, Any], **columns: Any) -> pa.Table:
    """Rows of (user, item, minute, action); more columns by name."""
    return pa.table(
        {
            "user_id": pa.array([row[0] for row in rows], pa.int64()),
            "item_id": pa.array([row[1] for row in rows], pa.int64()),
            "timestamp": pa.array([None if row[2] is None else at(row[2]) for row in rows], TIME),
            "action": pa.array([row[3] for row in rows], pa.string()),
            **columns,
        }
    )


def items(*ids: int, interests: Any = None, embeddings: Any = None) -> pa.Table:
    """Items with interest 1 and the embedding [1, 2], unless told otherwise."""
    return pa.table(
        {
            "item_id": pa.array(ids, pa.int64()),
            "created_at": pa.array([at(0)] * len(ids), TIME),
            "interests": pa.array(interests or [[1]] * len(ids), pa.list_(pa.int64())),
            "content_embedding": pa.array(embeddings or [[1.0, 2.0]] * len(ids), pa.list_(pa.float32())),
        }
    )


def boards(*rows: tuple[int, int, int, float]) -> pa.Table:
    """Rows of (board, user, item, minute)."""
    board, user, item, minute = zip(*rows)
    return pa.table({"board_id": board, "user_id": user, "item_id": item, "added_at": pa.array([at(m) for m in minute], TIME)})


def follows(*rows: tuple[int, int, float]) -> pa.Table:
    """Rows of (user, interest, minute)."""
    user, interest, minute = zip(*rows)
    return pa.table({"user_id": user, "interest_id": interest, "followed_at": pa.array([at(m) for m in minute], TIME)})


def interests(*ids: int) -> pa.Table:
    return pa.table({"interest_id": pa.array(ids, pa.int64()), "name": pa.array([f"name {i}" for i in ids])})


GOOD = {
    "events": events((1, 10, 0, "click"), (1, 20, 1, "save"), (2, 10, 2, "click")),
    "items": items(10, 20),
    "boards": boards((7, 1, 10, 5)),
    "interests": interests(1),
}


def write(folder: Path, **tables: pa.Table | list[pa.Table]) -> str:
    """The good tables with some replaced; a list becomes one file each, in its order; None leaves a table out."""
    for name, table in {**GOOD, **tables}.items():
        if table is None:
            continue
        place = folder / name
        place.mkdir(parents=True)
        for number, part in enumerate(table if isinstance(table, list) else [table]):
            pq.write_table(part, place / f"{number}.parquet")
    return str(folder)


def settings_of(tables: str, **settings: Any) -> DataSettings:
    """Time stands still in February 2025, everything is in the window, any share of rows may be dropped."""
    return DataSettings(**{"tables": tables, "now": "2025-02-01T00:00:00+00:00", "window_days": None, "max_dropped_share": 1.0, **settings})


@dataclasses.dataclass(frozen=True)
class Clean:
    """Clean tables and facts, made without the report's pictures."""

    outputs: dict[str, Output]
    facts: dict[str, Any]

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        table = read_table(self.outputs[name].uri, list(columns))
        return list(zip(*(table[column].to_pylist() for column in columns)))


def clean(tables: str, folder: Path, **settings: Any) -> Clean:
    """What the step does to tables, but for its report."""
    chosen = settings_of(tables, **settings)
    with checked(chosen) as result:
        written = write_clean(result, str(folder / "clean"))
        profile = profile_of(result.con, [action.name for action in chosen.actions if action.positive], result.embedding_dim)
        return Clean(written.outputs, facts_of(result, written.outputs, profile))


def validate(tables: str, workspace: Path, **settings: Any) -> Outcome:
    """Run the step as the pipeline does."""
    run = Run(name="test", workspace=str(workspace), config=PipelineConfig(data=settings_of(tables, **settings)))
    return execute("validate_data", run.save())
