"""What is ranked and what counts as right: the catalogue, and for each held-out request its seen and its relevant items.

Relevant items are the distinct items of a request's unconditional targets. Seen items are all positive events of the user strictly before
the request's first one, in the user's order (time, then event_order); they come from the events, as `history_items` is cut to the newest.
A target that the user had already seen can't be in a masked list: it is dropped and counted, and a request without any other target is
skipped and counted. Places are rows of the catalogue, which is sorted by item_id.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from clrflow.contracts import INTEREST
from clrflow.data.tables import read_table, register
from clrflow.errors import ClrflowError, DataError
from clrflow.evaluation.groups import Array, Groups


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """All items that can be recommended, by place."""

    item_ids: Array
    """int64 [num_items], ascending."""
    num_engagements: Array
    """int64 [num_items]: positive events of the train span."""
    created_at_us: Array
    """int64 [num_items]: microseconds since 1970."""
    interest_ids: Array
    """int64 [num_interests], ascending."""
    interests: sp.csr_matrix
    """bool [num_items, num_interests]: which item carries which interest."""

    @property
    def num_items(self) -> int:
        return len(self.item_ids)

    def places(self, item_ids: Array, what: str) -> Array:
        """Places of items; DataError when one isn't in the catalogue, `what` says where it stands."""
        return _places(self.item_ids, item_ids, what, "items")


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Conditions of held-out requests, flat, sorted by request and index."""

    row: Array
    """int64: row of the request in its HeldOut."""
    index: Array
    """int32: index into the request's `conditions`."""
    type: Array
    """str."""
    id: Array
    """int64."""
    role: Array
    """str."""
    targets: Groups
    """Relevant items of each condition, places: for an oracle condition the targets that it was drawn from."""

    def take(self, chosen: Array) -> Conditions:
        """Some of them, by mask or by position."""
        rows = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        return Conditions(self.row[rows], self.index[rows], self.type[rows], self.id[rows], self.role[rows], self.targets.take(rows))


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The requests of one split that are ranked, sorted by request_id."""

    split: str
    request_ids: Array
    user_ids: Array
    requested_at_us: Array
    seen: Groups
    """Places of all items that the user had engaged with before."""
    masked: Groups
    """What is left out of the lists: `seen`, or nothing when mask_seen is off."""
    relevant: Groups
    conditions: Conditions
    num_requests: int
    """Requests of the split before sampling and skipping."""
    num_sampled: int
    """Of these, drawn for ranking."""
    num_skipped: int
    """Of the drawn ones, left out as all their targets were repeats."""
    num_repeats: int
    """Targets dropped as the user had seen them before."""

    def __len__(self) -> int:
        return len(self.request_ids)

    def facts(self) -> dict[str, int]:
        return {
            "requests": self.num_requests, "drawn": self.num_sampled, "skipped": self.num_skipped, "ranked": len(self),
            "users": len(np.unique(self.user_ids)), "targets": len(self.relevant.values), "repeats_dropped": self.num_repeats,
        }  # fmt: skip


def _places(sorted_ids: Array, ids: Array, what: str, table: str) -> Array:
    at = np.searchsorted(sorted_ids, ids)
    at = np.minimum(at, max(len(sorted_ids) - 1, 0))
    wrong = np.flatnonzero(sorted_ids[at] != ids) if len(sorted_ids) else np.arange(len(ids))
    if len(wrong):
        raise DataError(
            f"{what}: id {ids[wrong[0]]} and {len(wrong) - 1} more are not in table {table}; "
            "run the steps again from validate_data so that all tables come from one input."
        )
    return at


def load_catalogue(items_uri: str, statistics_uri: str, interests_uri: str) -> Catalogue:
    """Read the catalogue; items without a row in the statistics count as never engaged with."""
    items = read_table(items_uri, ["item_id", "created_at", "interests"]).sort_by("item_id").combine_chunks()
    item_ids = items["item_id"].to_numpy()
    if not len(item_ids):
        raise DataError(f"{items_uri}: the catalogue holds no item, so nothing can be ranked; check table items.")
    statistics = read_table(statistics_uri, ["item_id", "num_engagements"])
    num_engagements = np.zeros(len(item_ids), np.int64)
    where = _places(item_ids, statistics["item_id"].to_numpy(), "item_statistics.item_id", "items")
    num_engagements[where] = statistics["num_engagements"].to_numpy()
    interest_ids = np.unique(read_table(interests_uri, ["interest_id"])["interest_id"].to_numpy())
    carried = items["interests"].combine_chunks()
    counts = np.nan_to_num(carried.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
    columns = _places(interest_ids, carried.flatten().to_numpy(), "items.interests", "interests")
    ones = np.ones(len(columns), bool)
    rows = np.repeat(np.arange(len(item_ids)), counts)
    interests = sp.csr_matrix((ones, (rows, columns)), shape=(len(item_ids), max(len(interest_ids), 1)))
    created = items["created_at"].combine_chunks().cast(pa.int64()).to_numpy(zero_copy_only=False)
    return Catalogue(item_ids, num_engagements, created, interest_ids, interests)


class Source:
    """The tables of held-out requests behind one DuckDB connection.

    Memory: DuckDB spills beyond `memory_limit` below the local folder `scratch` (None: the system's temporary folder); what is handed out
    is bounded by `max_requests`.
    """

    def __init__(
        self, requests_uri: str, events_uri: str, positive_actions: Sequence[str], scratch: str | None = None, memory_limit: str = "2GB"
    ):
        self._spill = tempfile.TemporaryDirectory(prefix=".duckdb-", dir=scratch)
        self._con = duckdb.connect(config={"memory_limit": memory_limit, "temp_directory": self._spill.name})
        self._con.execute("SET TimeZone='UTC'; SET preserve_insertion_order=false")
        register(self._con, "requests", requests_uri)
        register(self._con, "events", events_uri)
        self._con.register("positive", pa.table({"action": pa.array(list(positive_actions), pa.string())}))

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._con.close()
        self._spill.cleanup()

    def _fetch(self, query: str, *parameters: object) -> dict[str, Array]:
        """Columns of a result as numpy arrays; ids stay int64, as no column may be null."""
        table = self._con.execute(query, list(parameters)).to_arrow_table()
        columns = {}
        for name in table.column_names:
            if table[name].null_count:
                raise ClrflowError(f"requests: column {name} holds {table[name].null_count} nulls; run bootstrap again.")
            columns[name] = table[name].to_numpy()
        return columns

    def span(self) -> dict[str, tuple[int, int]]:
        """First and last target time of each split in microseconds: what the leakage check compares."""
        rows = self._con.execute(
            "SELECT split, min(epoch_us(t.timestamp)), max(epoch_us(t.timestamp)) "
            "FROM (SELECT split, unnest(targets) t FROM requests) GROUP BY 1"
        ).fetchall()
        return {split: (first, last) for split, first, last in rows}

    def out_of_order_users(self) -> int:
        """Users with a training target later than one of their held-out targets; must be 0 whatever the split."""
        row = self._con.execute(
            """SELECT count(*) FROM (
                 SELECT user_id, max(t.timestamp) FILTER (split = 'train') AS trained, min(t.timestamp) FILTER (split <> 'train') AS held
                 FROM (SELECT user_id, split, unnest(targets) t FROM requests) GROUP BY 1) WHERE trained > held"""
        ).fetchone()
        return int(row[0]) if row else 0

    def training_pairs(self, max_events: int) -> tuple[Array, Array, int]:
        """(user_id, item_id) of every distinct engagement of the train span: what a baseline may be fitted on, and how many there are.

        These are the unconditional targets and the histories of the training requests; of more than `max_events` the newest are kept.
        """
        self._con.execute(
            """CREATE OR REPLACE TEMP TABLE pairs AS SELECT user_id, item_id, max(engaged_at) AS engaged_at FROM (
                  SELECT user_id, t.item_id AS item_id, t.timestamp AS engaged_at
                  FROM (SELECT user_id, unnest(targets) t FROM requests WHERE split = 'train') WHERE t.condition = -1
                  UNION ALL
                  SELECT user_id, unnest(history_items), unnest(history_times) FROM requests WHERE split = 'train'
                ) GROUP BY 1, 2"""
        )
        row = self._con.execute("SELECT count(*) FROM pairs").fetchone()
        kept = self._fetch(
            "SELECT user_id, item_id FROM (SELECT * FROM pairs ORDER BY engaged_at DESC, user_id, item_id LIMIT ?) ORDER BY user_id, item_id",
            max_events,
        )
        self._con.execute("DROP TABLE pairs")
        return kept["user_id"], kept["item_id"], int(row[0]) if row else 0

    def held_out(self, catalogue: Catalogue, split: str, *, mask_seen: bool, max_requests: int, seed: int) -> HeldOut:
        """The requests of a split; more than `max_requests` are sampled without replacement."""
        every = self._fetch("SELECT request_id FROM requests WHERE split = ? ORDER BY request_id", split)["request_id"]
        drawn = every
        if len(every) > max_requests:
            drawn = np.sort(np.random.default_rng(seed).choice(every, max_requests, replace=False))
        self._con.register("drawn", pa.table({"request_id": drawn}))
        self._con.execute("CREATE OR REPLACE TEMP TABLE held AS SELECT r.* FROM requests r SEMI JOIN drawn USING (request_id)")
        self._con.execute("CREATE OR REPLACE TEMP TABLE target AS SELECT request_id, user_id, unnest(targets) t FROM held")
        about = self._fetch("SELECT request_id, user_id, epoch_us(requested_at) AS requested_at_us FROM held ORDER BY request_id")
        seen = self._seen(catalogue, about["request_id"])
        pairs = self._fetch("SELECT DISTINCT request_id, t.item_id AS item_id FROM target WHERE t.condition = -1 ORDER BY 1, 2")
        rows = np.searchsorted(about["request_id"], pairs["request_id"])
        places = catalogue.places(pairs["item_id"], "requests.targets.item_id")
        repeated = np.zeros(len(rows), bool)
        if mask_seen:
            repeated = np.isin(rows * catalogue.num_items + places, seen.row_of * catalogue.num_items + seen.values)
        relevant = Groups.of(rows[~repeated], places[~repeated], len(drawn))
        kept = np.flatnonzero(relevant.counts > 0)
        nothing = Groups(np.zeros(len(kept) + 1, np.int64), np.zeros(0, np.int64))
        seen = seen.take(kept)
        return HeldOut(
            split=split,
            request_ids=about["request_id"][kept],
            user_ids=about["user_id"][kept],
            requested_at_us=about["requested_at_us"][kept],
            seen=seen,
            masked=seen if mask_seen else nothing,
            relevant=relevant.take(kept),
            conditions=self._conditions(catalogue, about["request_id"][kept], seen if mask_seen else nothing),
            num_requests=len(every),
            num_sampled=len(drawn),
            num_skipped=len(drawn) - len(kept),
            num_repeats=int(repeated.sum()),
        )

    def _seen(self, catalogue: Catalogue, request_ids: Array) -> Groups:
        """All items engaged with before each request's first event.

        The first event is found by (user, time, item, action), which is unique among clean events; its event_order then breaks ties, as
        MovieLens-like logs give many events one second.
        """
        self._con.execute(
            """CREATE OR REPLACE TEMP TABLE start AS
               SELECT f.request_id, f.user_id, e.timestamp, e.event_order FROM (
                 SELECT DISTINCT request_id, user_id, t.timestamp AS timestamp, t.item_id AS item_id, t.action AS action
                 FROM target WHERE t.condition = -1 AND t.position = 0) f
               JOIN events e ON e.user_id = f.user_id AND e.timestamp = f.timestamp AND e.item_id = f.item_id AND e.action = f.action"""
        )
        found = self._fetch("SELECT request_id FROM start ORDER BY request_id")["request_id"]
        if not np.array_equal(found, request_ids):
            missing = np.setdiff1d(request_ids, found)
            example = missing[0] if len(missing) else found[np.flatnonzero(found[1:] == found[:-1])[0]]
            raise ClrflowError(
                f"requests: the first engagement of request {example} is not exactly one event of table events "
                f"({len(missing)} of {len(request_ids)} have none); run validate_data and bootstrap again so that both come from one input."
            )
        pairs = self._fetch(
            """SELECT DISTINCT s.request_id, e.item_id FROM start s JOIN events e ON e.user_id = s.user_id
               AND (e.timestamp < s.timestamp OR (e.timestamp = s.timestamp AND e.event_order < s.event_order))
               SEMI JOIN positive p ON p.action = e.action ORDER BY 1, 2"""
        )
        rows = np.searchsorted(request_ids, pairs["request_id"])
        return Groups.of(rows, catalogue.places(pairs["item_id"], "events.item_id"), len(request_ids))

    def _conditions(self, catalogue: Catalogue, request_ids: Array, masked: Groups) -> Conditions:
        """The conditions of the ranked requests with the unseen targets that oracle ones were drawn from."""
        self._con.register("ranked", pa.table({"request_id": request_ids}))
        found = self._fetch(
            """SELECT request_id, (i - 1)::INTEGER AS index, c.type AS type, c.id AS id, c.role AS role FROM (
                 SELECT request_id, unnest(conditions) AS c, generate_subscripts(conditions, 1) AS i
                 FROM held SEMI JOIN ranked USING (request_id)
               ) ORDER BY 1, 2"""
        )
        row = np.searchsorted(request_ids, found["request_id"])
        drawn = self._fetch(
            """SELECT DISTINCT request_id, t.condition AS condition, t.item_id AS item_id
               FROM target SEMI JOIN ranked USING (request_id)
               WHERE t.source = 'oracle' AND t.condition >= 0 ORDER BY 1, 2, 3"""
        )
        target_row = np.searchsorted(request_ids, drawn["request_id"])
        places = catalogue.places(drawn["item_id"], "requests.targets.item_id")
        unseen = ~np.isin(target_row * catalogue.num_items + places, masked.row_of * catalogue.num_items + masked.values)
        # A condition's key is its request's row and its index; 2**20 conditions a request are far beyond any setting.
        key, wanted = (row << 20) + found["index"], (target_row << 20) + drawn["condition"]
        if not np.isin(wanted, key).all():
            raise ClrflowError("requests: a target names a condition that its request doesn't have; run bootstrap again.")
        targets = Groups.of(np.searchsorted(key, wanted)[unseen], places[unseen], len(key))
        interests = found["id"][found["type"] == INTEREST]
        _places(catalogue.interest_ids, interests, "requests.conditions (interest)", "interests")
        return Conditions(row, found["index"], found["type"], found["id"], found["role"], targets)
