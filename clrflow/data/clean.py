"""Writes the clean tables, sorted: events in a folder for each UTC day, the others whole, and a table of what each day holds.

    events/day=2026-02-01/part-00000.parquet     items/part-00000.parquet     ...     days/part-00000.parquet

Days are sorted one after the other, small ones together, so that a sort holds a few million rows however long the log is.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from clrflow import storage
from clrflow.data.ordering import EVENTS_SORTED_BY, Places
from clrflow.data.schema import DAYS, EVENT_ORDER, EVENTS, ITEMS, with_width
from clrflow.data.tables import ROWS_PER_GROUP, TableWriter, group_rows, write_table
from clrflow.manifest import Output
from clrflow.progress import Progress

if TYPE_CHECKING:
    import duckdb

    from clrflow.data.validate import Checked

SORTED_BY = {
    "items": "item_id",
    "boards": "user_id, board_id, added_at, item_id",
    "user_interests": "user_id, followed_at, interest_id",
    "interests": "interest_id",
}
TIME_OF = {"events": "timestamp", "items": "created_at", "boards": "added_at", "user_interests": "followed_at"}
ONE_DAY = datetime.timedelta(days=1)
ROWS_PER_SORT = 4_000_000
"""Consecutive days are sorted together up to so many rows: some 400 MB."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Day:
    """The clean rows of one table on one UTC day."""

    table: str
    day: datetime.date
    num_rows: int
    fingerprint: str
    num_users: int = 0
    """Of events only."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """What was written."""

    outputs: dict[str, Output]
    days: list[Day]


def day_of(column: str) -> str:
    """SQL: the UTC day of a timestamp, as a date."""
    return f"CAST(make_timestamp(epoch_us({column})) AS DATE)"


def used_events(window_start_us: int | None) -> str:
    """SQL: the clean events inside the window."""
    if window_start_us is None:
        return "SELECT * FROM clean_events"
    start = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=window_start_us)
    return f"SELECT * FROM clean_events WHERE timestamp >= TIMESTAMPTZ '{start.isoformat()}'"


def write_clean(result: Checked, folder: str) -> Written:
    """Write the clean tables and `days` below `folder`, with every column of the contract."""
    events, days = _write_events(result.con, storage.join(folder, "events"))
    outputs = {"events": events}
    for name in sorted(SORTED_BY):
        rows = group_rows(result.embedding_dim * 4) if name == ITEMS.name else ROWS_PER_GROUP
        # Small batches: a vector of DuckDB's is copied into them, and the writer joins them to row groups.
        query = f"{_query(result, name)} ORDER BY {SORTED_BY[name]}"
        reader = result.con.execute(query).to_arrow_reader(min(rows, 16_384))
        outputs[name] = write_table(storage.join(folder, name), itertools.chain(reader), _output_schema(result, name), rows_per_group=rows)
        if name in TIME_OF:
            days += _days_of(result, name)
    listed = [{"table": day.table, "day": day.day, "num_rows": day.num_rows, "fingerprint": day.fingerprint} for day in days]
    outputs["days"] = write_table(storage.join(folder, "days"), pa.Table.from_pylist(listed, schema=DAYS), DAYS)
    return Written(outputs=outputs, days=days)


def _output_schema(result: Checked, name: str) -> pa.Schema:
    schema = result.intakes[name].table.columns
    return with_width(schema, result.embedding_dim) if name == ITEMS.name else schema


def _query(result: Checked, name: str) -> str:
    columns = {field.name: f'"{field.name}"' for field in _output_schema(result, name)}
    if name == "items":  # never null, no null and no repetition inside, the order kept
        columns["interests"] = (
            "list_filter(coalesce(interests, []), lambda id, place: id IS NOT NULL AND list_position(interests, id) = place) AS interests"
        )
    if name == "interests":
        columns["name"] = "coalesce(name, 'interest ' || interest_id) AS name"
    return f"SELECT {', '.join(columns.values())} FROM clean_{name}"


def fingerprint_sql(columns: list[str]) -> str:
    """SQL: a hash of rows that doesn't see their order.

    Hashed twice: a hash of several columns is linear in the last one's, so xor over rows wouldn't notice two rows that swap its values.
    """
    return f"bit_xor(hash(hash({', '.join(columns)})))"


def _hex(fingerprint: int) -> str:
    return f"{fingerprint:016x}"


def _days_of(result: Checked, name: str) -> list[Day]:
    columns = [f'"{column}"' for column in _output_schema(result, name).names]
    found = result.con.execute(
        f"SELECT {day_of(TIME_OF[name])} AS day, count(*), {fingerprint_sql(columns)} FROM ({_query(result, name)}) GROUP BY 1 ORDER BY 1"
    ).fetchall()
    return [Day(table=name, day=day, num_rows=num_rows, fingerprint=_hex(fingerprint)) for day, num_rows, fingerprint in found]


def _write_events(con: duckdb.DuckDBPyConnection, uri: str) -> tuple[Output, list[Day]]:
    counts = con.execute(f"SELECT {day_of('timestamp')} AS day, count(*) FROM used_events GROUP BY 1 ORDER BY 1").fetchall()
    columns = ", ".join(f'"{name}"' for name in EVENTS.columns.names)
    storage.remove(uri)
    writer = _DailyWriter(con.cursor(), uri)  # a cursor of its own: a query on `con` would end the one whose rows are streaming
    try:
        with Progress("sorting events", sum(count for _, count in counts)) as progress:
            for first, last in _runs(counts):
                reader = con.execute(
                    f"SELECT {columns}, {day_of('timestamp')} AS day FROM used_events "
                    f"WHERE timestamp >= TIMESTAMPTZ '{first} 00:00:00+00' AND timestamp < TIMESTAMPTZ '{last + ONE_DAY} 00:00:00+00' "
                    f"ORDER BY {'day, ' if first != last else ''}{EVENTS_SORTED_BY}"
                ).to_arrow_reader(ROWS_PER_GROUP)
                for batch in reader:
                    if len(batch):
                        writer.write(pa.Table.from_batches([batch]))
                        progress.advance(len(batch))
        return writer.close()
    finally:
        writer.abandon()


def _runs(counts: list[tuple[datetime.date, int]]) -> Iterator[tuple[datetime.date, datetime.date]]:
    """First and last day of what is sorted together."""
    first, rows = counts[0][0], 0
    last = first
    for day, count in counts:
        if rows and rows + count > ROWS_PER_SORT:
            yield first, last
            first, rows = day, 0
        last, rows = day, rows + count
    yield first, last


class _DailyWriter:
    """Takes events sorted by day, user, time and tie, and writes each day's into its own folder with their places among ties."""

    def __init__(self, con: duckdb.DuckDBPyConnection, uri: str):
        self.con, self.uri = con, uri
        self.days: list[Day] = []
        self._outputs: list[Output] = []
        self._places = Places()
        self._day: datetime.date | None = None
        self._writer: TableWriter | None = None
        self._fingerprint = self._num_users = 0
        self._last_user: int | None = None

    def write(self, rows: pa.Table) -> None:
        """At least one row, with the column `day` besides those of the contract."""
        user_ids, times = rows["user_id"].to_numpy(), rows["timestamp"].cast(pa.int64()).to_numpy()
        place = rows.column_names.index(EVENT_ORDER)
        numbered = rows.set_column(place, EVENT_ORDER, pa.array(self._places.of(user_ids, times)))
        days = rows["day"].cast(pa.int32()).to_numpy()
        begins = np.flatnonzero(np.concatenate([[True], days[1:] != days[:-1]]))
        for begin, end in itertools.pairwise([*begins.tolist(), len(rows)]):
            self._write_part(rows["day"][begin].as_py(), numbered.slice(begin, end - begin).drop(["day"]), user_ids[begin:end])

    def _write_part(self, day: datetime.date, part: pa.Table, user_ids: np.ndarray) -> None:
        if day != self._day:
            self._finish_day()
            self._day, self._writer = day, TableWriter(storage.join(self.uri, f"day={day.isoformat()}"), EVENTS.columns)
        assert self._writer is not None
        self._writer.write(part)
        relation = self.con.from_arrow(part)
        hashed = relation.aggregate(fingerprint_sql([f'"{name}"' for name in part.column_names])).fetchone()
        assert hashed is not None
        self._fingerprint ^= hashed[0]
        self._num_users += int((user_ids[1:] != user_ids[:-1]).sum()) + (self._last_user != int(user_ids[0]))
        self._last_user = int(user_ids[-1])

    def _finish_day(self) -> None:
        if self._writer is None or self._day is None:
            return
        output = self._writer.close()
        day = Day(
            table=EVENTS.name, day=self._day, num_rows=output.num_rows or 0, fingerprint=_hex(self._fingerprint), num_users=self._num_users
        )
        self.days.append(day)
        self._outputs.append(output)
        self._writer, self._fingerprint, self._num_users, self._last_user = None, 0, 0, None

    def close(self) -> tuple[Output, list[Day]]:
        """Write what is left; the whole table, and its days."""
        self._finish_day()
        # The days' own fingerprints, so that no file is read twice for them.
        contents = [(day.day.isoformat(), output.fingerprint) for day, output in zip(self.days, self._outputs)]
        whole = Output(
            uri=self.uri,
            fingerprint=storage.fingerprint_of(contents),
            num_rows=sum(day.num_rows for day in self.days),
            num_bytes=sum(output.num_bytes for output in self._outputs),
        )
        return whole, self.days

    def abandon(self) -> None:
        """Let go of the open file, after an error."""
        if self._writer is not None:
            self._writer.abandon()
