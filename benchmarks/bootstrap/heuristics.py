"""How good the generators are on a data set: recall of the next engagement, and what explains the engagements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from clrflow.contracts import ATTRIBUTED, CONDITION_TYPES, FALLBACK, LOGGED, TRAIN
from clrflow.data.tables import iter_batches, open_dataset, read_table
from clrflow.evaluation.scorers import round_robin

DEPTH = 500
REQUESTS_AT_A_TIME = 512


def recall(items: str, requests: str, candidates: str) -> dict[str, Any]:
    """`requests`: number of held-out requests, all of which are looked at; then by generator the share whose first engagement its list holds.

    A request's lists of one generator are merged by turns, what its history holds is left out, and the first 500 count. A request without lists
    counts as missed.
    """
    item_ids = np.sort(read_table(items, ["item_id"]).column("item_id").to_numpy())
    held_out = read_table(requests, ["request_id", "history_items", "targets"], filter=ds.field("split") != TRAIN).combine_chunks()
    lists = open_dataset(candidates)
    names = sorted(pc.unique(lists.to_table(columns=["generator"]).column("generator")).to_pylist())
    found = dict.fromkeys(names, 0)
    for start in range(0, len(held_out), REQUESTS_AT_A_TIME):
        part = held_out.slice(start, REQUESTS_AT_A_TIME)
        ids = part.column("request_id").combine_chunks()
        listed = lists.to_table(columns=["request_id", "generator", "items"], filter=ds.field("request_id").isin(ids)).combine_chunks()
        seen = _entries(part.column("history_items"), item_ids)
        following = np.searchsorted(item_ids, pc.struct_field(pc.list_element(part.column("targets"), 0), "item_id").to_numpy())
        for name in names:
            mine = listed.filter(pc.equal(listed.column("generator"), name))
            order, position, item = _entries(mine.column("items"), item_ids)
            row = np.searchsorted(ids.to_numpy(), mine.column("request_id").to_numpy())[order]
            fresh = ~np.isin(row * len(item_ids) + item, seen[0] * len(item_ids) + seen[2])
            merged = round_robin(row[fresh], order[fresh], position[fresh], item[fresh], len(part), len(item_ids), DEPTH)
            found[name] += int((merged == following[:, None]).any(axis=1).sum())
    total = max(len(held_out), 1)
    return {"requests": len(held_out), **{name: hits / total for name, hits in found.items()}}


def _entries(lists: pa.ChunkedArray, item_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A column of lists of items as entries: row, position in the row's list, place of the item in the catalogue."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    row = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return row, position, np.searchsorted(item_ids, pc.list_flatten(lists).to_numpy())


def explained(requests: str) -> dict[str, Any]:
    """Of all engagements the share that each type of condition explains (several may explain one), that the log names, that fell back."""
    counts = dict.fromkeys([*CONDITION_TYPES[1:], ATTRIBUTED, LOGGED, FALLBACK], 0)
    total = 0
    for batch in iter_batches(requests, ["conditions", "targets"], num_rows=4096):
        targets, conditions = pc.list_flatten(batch.column("targets")), batch.column("conditions")
        owner = pc.list_parent_indices(batch.column("targets")).to_numpy()
        index, position = (pc.struct_field(targets, name).to_numpy().astype(np.int64) for name in ("condition", "position"))
        source = np.asarray(pc.struct_field(targets, "source").to_pylist(), object)
        total += int((index == -1).sum())
        lengths = pc.list_value_length(conditions).to_numpy().astype(np.int64)
        place = (np.cumsum(lengths) - lengths)[owner] + index
        types = pc.index_in(pc.struct_field(pc.list_flatten(conditions), "type"), pa.array(CONDITION_TYPES)).to_numpy()
        engagement = owner.astype(np.int64) * (int(position.max(initial=0)) + 1) + position
        for name in (ATTRIBUTED, LOGGED, FALLBACK):
            mine = source == name
            counts[name] += len(np.unique(engagement[mine]))
            if name == ATTRIBUTED:
                kind = types[place[mine]]
                for code, condition_type in enumerate(CONDITION_TYPES[1:], start=1):
                    counts[condition_type] += len(np.unique(engagement[mine][kind == code]))
    return {"engagements": total, **{name: count / max(total, 1) for name, count in counts.items()}}
