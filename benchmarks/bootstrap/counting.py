"""Counts and weighs what was written, by other code than the step's: no engagement lost, and bytes of requests against bytes of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clrflow import storage
from clrflow.contracts import CONDITION, REQUESTS, TARGET
from clrflow.data.tables import iter_batches, read_table, write_table

PAIRS = pa.schema(
    [
        *(REQUESTS.field(name) for name in ("request_id", "user_id", "requested_at", "split")),
        *(REQUESTS.field(f"history_{name}") for name in ("items", "actions", "times")),
        ("asked", CONDITION),
        ("target", TARGET),
    ]
)
"""One row a (request, condition, target), as training reads them where requests aren't kept together; null for the unconditional query."""

ROWS_PER_GROUP = 8192


def engagements_in(events: str, positive: list[str]) -> int:
    """Rows of the clean events with a positive action."""
    actions = pa.array(positive)
    return sum(pc.sum(pc.is_in(batch.column("action"), actions)).as_py() or 0 for batch in iter_batches(events, ["action"]))


def engagements_out(requests: str) -> int:
    """Unconditional targets of the written requests: every engagement has exactly one."""
    total = 0
    for batch in iter_batches(requests, ["targets"], num_rows=4096):
        total += pc.sum(pc.equal(pc.struct_field(batch.column("targets").flatten(), "condition"), -1)).as_py() or 0
    return total


def weigh_pairs(requests: str, folder: str) -> dict[str, Any]:
    """Write the pairs that the requests stand for and compare: requests, pairs, and the bytes of both in Arrow and in files.

    Pairs carry no impressions, requests do. In files, neighbouring pairs of one request compress to little more than the request; training wants
    them shuffled, so both are written. Memory: all pairs once more than Arrow holds them.
    """
    weights = {"requests": 0, "request_arrow": 0, "pairs": 0, "pair_arrow": 0}

    def pairs() -> Iterator[pa.RecordBatch]:
        for batch in iter_batches(requests, num_rows=512):
            # Slices of a row group count the whole of it; copied rows count themselves.
            batch = pa.RecordBatch.from_arrays([pa.concat_arrays([column]) for column in batch.columns], schema=batch.schema)
            spelt = _pairs(batch)
            for name, rows in (("request", batch), ("pair", spelt)):
                weights[f"{name}s"] += len(rows)
                weights[f"{name}_arrow"] += rows.nbytes
            yield spelt

    in_order = write_table(storage.join(folder, "in-order"), pairs(), PAIRS, rows_per_group=ROWS_PER_GROUP)
    shuffled = read_table(in_order.uri).take(np.random.default_rng(0).permutation(weights["pairs"]))
    mixed = write_table(storage.join(folder, "shuffled"), shuffled, PAIRS, rows_per_group=ROWS_PER_GROUP)
    return {**weights, "pair_files": in_order.num_bytes, "shuffled_pair_files": mixed.num_bytes}


def _pairs(batch: pa.RecordBatch) -> pa.RecordBatch:
    targets, conditions = batch.column("targets"), batch.column("conditions")
    owner = pc.list_parent_indices(targets)
    flat = targets.flatten()
    index = pc.struct_field(flat, "condition").to_numpy()
    first = np.asarray(conditions.offsets)[:-1] - conditions.offsets[0].as_py()
    place = first[owner.to_numpy()] + index
    asked = conditions.flatten().take(pa.array(place, mask=index < 0))
    columns = [batch.column(name).take(owner) for name in PAIRS.names[:-2]]
    return pa.RecordBatch.from_arrays([*columns, asked, flat], schema=PAIRS)
