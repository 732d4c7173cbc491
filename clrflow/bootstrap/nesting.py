"""Nests sorted rows into requests, user states or candidate lists, and writes a file a bucket: the work of an engine's `each`.

Only Arrow and numpy: the same functions run in this process and in Spark's executors, so both engines write equal files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clrflow import storage
from clrflow.bootstrap.engine import BUCKET
from clrflow.bootstrap.expressions import REQUEST_BITS
from clrflow.bootstrap.figures import Sizes, weigh
from clrflow.bootstrap.histories import Ints, slices
from clrflow.contracts import CANDIDATES, CONDITION, REQUESTS, TARGET, USER_STATES
from clrflow.data.tables import write_file

ROWS_A_GROUP = 1024
"""Requests of a row group: rows are wide, and a reader holds whole groups."""
Written = tuple[int, pa.Table, int]


def day_folder(folder: str, day: int) -> str:
    """Where a table keeps the rows of a day (days since 1970)."""
    return storage.join(folder, f"day={np.datetime64(day, 'D')}")


def _write(nested: pa.Table, ids: Ints, folder: str, size: int, schema: pa.Schema, rows_per_group: int = ROWS_A_GROUP) -> Iterator[Written]:
    """A file for each bucket of the sorted `ids`, one id a row: (day, rows, bytes)."""
    buckets = ids // size
    starts = np.flatnonzero(np.diff(buckets, prepend=buckets[:1] - 1))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(ids)], strict=True):
        bucket, rows = int(buckets[start]), nested.slice(start, stop - start)
        num_bytes = write_file(_file_of(folder, bucket, size), rows, schema, rows_per_group=rows_per_group)
        yield bucket // (2**REQUEST_BITS // size), rows, num_bytes


def _file_of(folder: str, bucket: int, size: int) -> str:
    """A bucket's file, named by its place in its day."""
    a_day = 2**REQUEST_BITS // size
    return storage.join(day_folder(folder, bucket // a_day), f"part-{bucket % a_day:05d}.parquet")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NestRequests:
    """Writes contracts.REQUESTS; returns what they weigh by day."""

    folder: str
    bucket_size: int
    max_history: int

    def __call__(self, rows: Mapping[str, pa.Table]) -> list[tuple[int, Sizes]]:
        heads = rows["heads"]
        ids = heads.column("query_id").to_numpy()
        columns = {name: heads.column(name) for name in ("user_id", "requested_at", "split")}
        columns |= {"request_id": heads.column("query_id"), **_histories(heads, rows["events"], self.max_history)}
        columns["conditions"] = _conditions(rows["conditions"], rows["shown"], ids)
        columns["targets"] = _nest(rows["targets"], ids, TARGET)
        columns["impressions"] = _nest(rows["impressions"], ids, "item_id")
        table = pa.table(columns).select(REQUESTS.names).cast(REQUESTS)
        return [(day, weigh(part, size)) for day, part, size in _write(table, ids, self.folder, self.bucket_size, REQUESTS)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NestUserStates:
    """Writes contracts.USER_STATES and returns the number of users."""

    folder: str
    bucket_size: int
    max_history: int

    def __call__(self, rows: Mapping[str, pa.Table]) -> int:
        heads = rows["heads"]
        ids = heads.column("query_id").to_numpy()
        columns = {"user_id": heads.column("user_id"), **_histories(heads, rows["events"], self.max_history)}
        columns["conditions"] = _conditions(rows["conditions"], rows["shown"], ids)
        table = pa.table(columns).select(USER_STATES.names).cast(USER_STATES)
        for _ in _write(table, ids, self.folder, self.bucket_size, USER_STATES):
            pass
        return len(table)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NestCandidates:
    """Writes contracts.CANDIDATES; returns (day, generator, lists, their items)."""

    folder: str
    bucket_size: int

    def __call__(self, rows: Mapping[str, pa.Table]) -> list[tuple[int, str, int, int]]:
        table = _nest_lists(rows["heads"], rows["lists"])
        ids, found = table.column("request_id").to_numpy(), []
        for day, part, _ in _write(table, ids, self.folder, self.bucket_size, CANDIDATES, 4 * ROWS_A_GROUP):
            counted = pa.table({"name": part.column("generator"), "n": pc.list_value_length(part.column("items"))})
            counted = counted.group_by("name").aggregate([("n", "count"), ("n", "sum")])
            found += [(day, row["name"], row["n_count"], row["n_sum"]) for row in counted.to_pylist()]
        return found


def _histories(heads: pa.Table, events: pa.Table, max_history: int) -> dict[str, pa.Array]:
    """The three history lists of queries: slices of their users' runs of events.

    heads: bucket, query_id, user_id, first_seq; events: bucket, user_id, seq, item_id, action, timestamp, sorted by the first three, without
    holes in the seq of a user in a bucket.
    """
    seqs, first_seq = events.column("seq").to_numpy(), heads.column("first_seq").to_numpy()
    known, users = np.unique(events.column("user_id").to_numpy(), return_inverse=True)
    place = np.searchsorted(known, heads.column("user_id").to_numpy())
    found = np.append(known, 0)[place] == heads.column("user_id").to_numpy()
    # One number for bucket and user; who has no event at all gets that of nobody.
    users = events.column(BUCKET).to_numpy() * (len(known) + 1) + users
    asked = heads.column(BUCKET).to_numpy() * (len(known) + 1) + np.where(found & (place < len(known)), place, len(known))
    begin, end = np.searchsorted(users, asked, side="left"), np.searchsorted(users, asked, side="right")
    oldest = np.append(seqs, 0)[np.minimum(begin, len(seqs))]  # of a user without rows it is never used
    stop = np.where(begin < end, np.clip(begin + first_seq - oldest, begin, end), begin)
    start = np.maximum(begin, stop - max_history)
    offsets, places = slices(start, stop)
    taken = events.take(pa.array(places))
    ends = pa.array(offsets.astype(np.int32))
    return {
        f"history_{name}": pa.ListArray.from_arrays(ends, one_array(taken.column(column)))
        for name, column in (("items", "item_id"), ("actions", "action"), ("times", "timestamp"))
    }


def _conditions(rows: pa.Table, shown: pa.Table, ids: Ints) -> pa.Array:
    """rows: query_id, index and the fields of CONDITION but items, sorted by both; shown: query_id, index, place, item_id, sorted."""
    # Both are sorted by (query, index): one number for the pair lets a search find where each condition's items begin.
    width = int(pc.max(rows.column("index")).as_py() or 0) + 1
    of_rows = (rows.column("query_id").to_numpy() - ids[0]) * width + rows.column("index").to_numpy()
    of_shown = (shown.column("query_id").to_numpy() - ids[0]) * width + shown.column("index").to_numpy()
    offsets = np.append(np.searchsorted(of_shown, of_rows), len(of_shown)).astype(np.int32)
    items = pa.ListArray.from_arrays(pa.array(offsets), one_array(shown.column("item_id"), pa.int64()))
    named = pa.table(
        {
            "query_id": rows.column("query_id"), "type": rows.column("condition_type"), "id": rows.column("condition_id"), "items": items,
            "score": rows.column("score"), "role": rows.column("role"),
        }
    )  # fmt: skip
    return _nest(named, ids, CONDITION)


def one_array(column: pa.ChunkedArray, kind: pa.DataType | None = None) -> pa.Array:
    """A column as one array of a type; floats lose what float32 can't hold."""
    combined = column.combine_chunks()
    array = combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks or [pa.array([], column.type)])
    return array if kind is None or array.type == kind else array.cast(kind, safe=not pa.types.is_floating(kind))


def _nest(rows: pa.Table, ids: Ints, kind: pa.DataType | str) -> pa.Array:
    """Rows sorted by query_id as one list an id; `kind` is a struct of columns, or the name of the one column."""
    keys = rows.column("query_id").to_numpy()
    offsets = np.append(np.searchsorted(keys, ids), len(keys)).astype(np.int32)
    if isinstance(kind, str):
        values = one_array(rows.column(kind), pa.int64())
    else:
        fields = [kind.field(place) for place in range(kind.num_fields)]
        values = pa.StructArray.from_arrays([one_array(rows.column(field.name), field.type) for field in fields], fields=fields)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _nest_lists(heads: pa.Table, lists: pa.Table) -> pa.Table:
    """contracts.CANDIDATES of `heads`: query_id, list_no and the columns that name the condition.

    lists: list_no, bucket, rank, item_id, score, sorted by the first three; a list that several buckets have is taken from the first.
    """
    numbers, buckets = lists.column("list_no").to_numpy(), lists.column(BUCKET).to_numpy()
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    first = np.repeat(buckets[starts], np.diff(np.append(starts, len(numbers))))
    lists = lists.filter(pa.array(buckets == first))
    numbers = lists.column("list_no").to_numpy()
    known, starts = np.unique(numbers, return_index=True)
    offsets = pa.array(np.append(starts, len(numbers)).astype(np.int32))
    asked = heads.column("list_no").to_numpy()
    place = np.minimum(np.searchsorted(known, asked), max(len(known) - 1, 0))
    found = np.flatnonzero(known[place] == asked) if len(known) else np.zeros(0, np.int64)  # a list may have turned out empty
    heads, chosen = heads.take(pa.array(found)), pa.array(place[found])
    columns = {
        "request_id": heads.column("query_id"),
        **{name: heads.column(name) for name in ("generator", "condition_type", "condition_id")},
        "items": pa.ListArray.from_arrays(offsets, one_array(lists.column("item_id"), pa.int64())).take(chosen),
        "scores": pa.ListArray.from_arrays(offsets, one_array(lists.column("score"), pa.float32())).take(chosen),
    }
    return pa.table(columns).select(CANDIDATES.names).cast(CANDIDATES)
